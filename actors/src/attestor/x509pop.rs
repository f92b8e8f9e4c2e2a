//! x509pop

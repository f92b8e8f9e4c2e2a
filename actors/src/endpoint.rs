//! Listeners, callers and the local services.

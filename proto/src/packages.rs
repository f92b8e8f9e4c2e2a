//! The generated files, placed so that their references to each other (`super::super::...`) resolve.
//!
//! `include!` and not `mod`, because `rustfmt` leaves included files as the generator wrote them.

/// The SPIFFE Workload API, which has no protobuf package.
pub mod workload {
    include!("gen/_.rs");
}

pub mod google {
    //! Google's common protobuf types.

    /// The rich error model: what the trailer `grpc-status-details-bin` carries.
    pub mod rpc {
        include!("gen/google.rpc.rs");
    }
}

pub mod grpc {
    //! Services that gRPC itself defines.

    pub mod health {
        //! Health checking.

        /// Health checking, version 1.
        pub mod v1 {
            include!("gen/grpc.health.v1.rs");
        }
    }
}

pub mod spiffe {
    //! SPIFFE APIs that have a package.

    /// The SPIFFE Broker API: identities for workloads that a broker vouches for.
    pub mod broker {
        include!("gen/spiffe.broker.rs");
    }
}

pub mod spire {
    //! The SPIRE APIs.

    pub mod agent {
        //! Agent APIs whose package lacks the `api` part.

        pub mod debug {
            //! State of a running agent.

            /// State of a running agent, version 1.
            pub mod v1 {
                include!("gen/spire.agent.debug.v1.rs");
            }
        }
    }

    pub mod api {
        //! The SPIRE server and agent APIs.

        /// Types that several APIs share.
        pub mod types {
            include!("gen/spire.api.types.rs");
        }

        pub mod agent {
            //! What an agent serves on its admin socket.

            pub mod delegatedidentity {
                //! Identities for a trusted delegate.

                /// Identities for a trusted delegate, version 1.
                pub mod v1 {
                    include!("gen/spire.api.agent.delegatedidentity.v1.rs");
                }
            }

            pub mod logger {
                //! The agent's log level.

                /// The agent's log level, version 1.
                pub mod v1 {
                    include!("gen/spire.api.agent.logger.v1.rs");
                }
            }
        }

        pub mod server {
            //! What a SPIRE server serves.

            pub mod agent {
                //! Attestation and administration of agents.

                /// Attestation and administration of agents, version 1.
                pub mod v1 {
                    include!("gen/spire.api.server.agent.v1.rs");
                }
            }

            pub mod bundle {
                //! Trust bundles.

                /// Trust bundles, version 1.
                pub mod v1 {
                    include!("gen/spire.api.server.bundle.v1.rs");
                }
            }

            pub mod entry {
                //! Registration entries.

                /// Registration entries, version 1.
                pub mod v1 {
                    include!("gen/spire.api.server.entry.v1.rs");
                }
            }

            pub mod svid {
                //! Signing of SVIDs.

                /// Signing of SVIDs, version 1.
                pub mod v1 {
                    include!("gen/spire.api.server.svid.v1.rs");
                }
            }
        }
    }
}

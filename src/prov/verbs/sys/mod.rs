// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C side of the provider: libibverbs and librdmacm, which are opened with dlopen and never linked.
//!
//! `abi.rs` and `constants.rs` hold the structures and numbers of both libraries. `entry_points.rs` lists the functions
//! that are called. `library.rs` opens the libraries at first use. The other files make single parts safe to call:
//! `cm_channel.rs`, `cm_event.rs` and `cm_id.rs` are for rdma_cm (event channels, events, identifiers),
//! `async_event.rs` reads the asynchronous events of a device, and `extended.rs` calls the verbs that only newer
//! libraries have. `status.rs` turns return values and completion statuses into errors with a text.
//!
//! No file here knows an endpoint or a domain. `tests/verbs-layout` compares the bindings with the C headers. Read
//! `library.rs` first, then `cm_id.rs` for the order of the calls of a connection.

pub(in crate::prov::verbs) mod abi;
pub mod async_event;
pub mod cm_channel;
pub mod cm_event;
pub mod cm_id;
pub(in crate::prov::verbs) mod constants;
pub(in crate::prov::verbs) mod entry_points;
pub mod extended;
pub mod library;
pub mod status;

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verbs provider: RDMA NICs (InfiniBand, RoCE and iWARP) through libibverbs. `docs/verbs.md` follows one operation
//! through the provider.
//!
//! The folders, the lowest layer first: `sys` (bindings of libibverbs and librdmacm), `device` (devices and verbs
//! objects), `wire` (formats that peers exchange), `memory` (regions and buffers), `queue` (queue pairs) and `state`
//! (the state of an endpoint and its parts). The folders above `state` add methods to the state: `ops` (posting and
//! completing operations), `rail` (a connection over several ports), `lane` (an endpoint that serves a connectionless
//! endpoint, rdm) and `connect`.
//!
//! `provider.rs` and `calls.rs` implement the traits of the layer above with `domain.rs`, `endpoint.rs` and `cq.rs`;
//! begin with `calls.rs`. `shared.rs` hands completions to the state of an endpoint, and `watch.rs` hands it the events
//! of the device. `attach.rs` registers memory. `info.rs` and `nic.rs` answer discovery.

mod attach;
mod calls;
mod connect;
mod cq;
pub mod device;
mod domain;
mod endpoint;
mod info;
mod lane;
mod limits;
mod memory;
mod nic;
mod ops;
mod provider;
mod queue;
mod rail;
mod shared;
mod state;
pub mod sys;
mod watch;
pub mod wire;

pub use connect::pep::Listener;
pub use cq::Cq;
pub use domain::Domain;
pub use endpoint::Endpoint;
pub use provider::Verbs;
pub use wire::greeting::DATA_MAX;

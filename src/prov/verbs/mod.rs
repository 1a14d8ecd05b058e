// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RDMA NICs through libibverbs: InfiniBand, RoCE and iWARP. `docs/verbs.md` follows an operation through it.
//!
//! The rooms, from below: `sys` (bindings), `device` (devices and verbs objects), `wire` (formats), `memory` (regions and buffers),
//! `queue` (queue pairs), `state` (the state of an endpoint and its parts), and above it `ops` (posting and completing), `rail`
//! (several ports), `lane` (an endpoint of rdm) and `connect`. `provider.rs` and `calls.rs` implement the traits of the layer above
//! with `domain.rs`, `endpoint.rs` and `cq.rs`; begin with `calls.rs`. `shared.rs` hands completions to the state of an endpoint,
//! `watch.rs` the events of the device. `attach.rs` registers memory, `info.rs` and `nic.rs` answer discovery.

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

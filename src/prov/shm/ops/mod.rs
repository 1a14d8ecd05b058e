// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations of both sides, and the turn of progress that moves them.
//!
//! In: posted operations from `endpoint.rs` and the tables of entry points, messages in the ring, and reports in the
//! slots. Out: copies (room `copy`), messages and reports for the peer, and one completion for each accepted operation.
//! All code of this room runs under the endpoint's lock.
//!
//! - `progress`: one turn of progress; read this file first
//! - `rma`, `atomic`, `list`, `msg`, `recv`: operations that this side posts; `recv` also matches arriving messages
//! - `staged`: RMA through the ring, the initiator's side and the target's side
//! - `rendezvous`: long messages, whose bytes the receiver fetches; `message_path` reports which path messages take
//! - `table`, `fast`: the tables of entry points, and the variants in which each entry point is compiled

pub(in crate::prov::shm) mod atomic;
pub(in crate::prov::shm) mod fast;
pub(in crate::prov::shm) mod list;
pub(in crate::prov::shm) mod message_path;
pub(in crate::prov::shm) mod msg;
pub(in crate::prov::shm) mod progress;
pub(in crate::prov::shm) mod recv;
pub(in crate::prov::shm) mod rendezvous;
pub(in crate::prov::shm) mod rma;
pub(in crate::prov::shm) mod staged;
pub(in crate::prov::shm) mod table;

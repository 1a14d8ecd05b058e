// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations: those that this side posts, those that arrive, and the turn of progress that moves both.
//!
//! In: posted operations from `endpoint`, and frames from `stream`. Out: frames for `stream`, bytes in memory, and one
//! completion for each accepted operation. All of this room runs under the endpoint's lock.
//!
//! - `progress`: one turn of progress, and the flow of frames to the socket; read this file first
//! - `rma`, `atomic`, `list`, `msg`: operations that this side posts
//! - `inbound`: carries out the frames of the peer, with `target` (memory of this side that the peer names) and `arrival`
//!   (messages)
//! - `fast`: the short way for the common operations; `table`: the table by which exported functions reach this way
//! - `keepalive`: finds peers that are gone; `idle`: endpoints that their thread need not visit
//! - `held_operations`: operations delayed by fault injection

pub mod arrival;
pub mod atomic;
pub mod fast;
pub mod held_operations;
pub mod idle;
pub mod inbound;
pub mod keepalive;
pub mod list;
pub mod msg;
pub mod progress;
pub mod rma;
pub mod table;
pub mod target;

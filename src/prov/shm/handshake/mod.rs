// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accepting a connection: from a listening socket to a peer whose credentials and introduction were checked.
//!
//! In: connections of processes of this host, which are hostile until checked. Out: a `Request` for the program, or a refusal
//! for the peer. The connecting side stands in `connect/cm.rs`.
//!
//! `acceptor.rs` bounds and checks the sockets that have not introduced themselves; read it first. `credentials.rs` asks the kernel
//! for the process and the user at the other end. `control.rs` is the control socket of a connection, which is emptied before it
//! is closed.

pub(in crate::prov::shm) mod acceptor;
pub(in crate::prov::shm) mod control;
pub(in crate::prov::shm) mod credentials;

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Formats: all data that two processes exchange, in shared memory and over the control socket.
//!
//! Read `layout.rs` first: the segment of an endpoint in shared memory, with ring, lines and slots, as
//! `docs/shm-format.md` specifies them. `message.rs` is the meaning of messages in the ring and of reports in the
//! slots. `frame.rs` has the packets of the control socket. `address.rs` has the addresses of endpoints as text, and
//! the sockets that addresses name.
//!
//! The region table, which peers map too, stands in `memory/table.rs` beside the regions that fill it.

pub(in crate::prov::shm) mod address;
pub(in crate::prov::shm) mod frame;
pub(in crate::prov::shm) mod layout;
pub(in crate::prov::shm) mod message;

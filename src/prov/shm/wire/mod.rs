// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Formats: all that another process reads of this one, or that this one reads of another.
//!
//! `layout.rs` is the segment of an endpoint in shared memory, its ring, lines and slots; `docs/shm-format.md` specifies the
//! same. Read it first. `message.rs` is the meaning of messages in the ring and of reports in the slots. `frame.rs` is the
//! packets of the control socket. `address.rs` is the addresses of endpoints as text, and the sockets that they name.
//!
//! The region table, which peers map too, stands in `memory/table.rs` beside the regions that fill it.

pub(in crate::prov::shm) mod address;
pub(in crate::prov::shm) mod frame;
pub(in crate::prov::shm) mod layout;
pub(in crate::prov::shm) mod message;

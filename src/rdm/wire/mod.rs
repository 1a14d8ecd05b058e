// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The wire format between two endpoints. `hello` is the private data that they exchange while a lane is connected,
//! `parcel` the packets on the connected lane. A parcel is a few words of 64 bits, followed by the bytes of a short
//! message; lanes carry it as a whole.
//!
//! Everything that a peer sends is checked in these files, or by the function that reads the field (`transfer/recv`).

use crate::error::{Code, Error, errno};

pub mod hello;
pub mod parcel;

fn protocol_error(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, words)
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What two connectionless endpoints say to each other: private data while a lane is connected, parcels afterwards. All of it
//! is checked here or by who asks for it.

use crate::error::{Code, Error, errno};

pub mod hello;
pub mod parcel;

fn protocol_error(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, words)
}

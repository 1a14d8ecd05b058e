// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stream of frames of one connection: bodies of any length are sent from memory and received into memory, without
//! blocking.
//!
//! In: frame headers and bodies to send; a socket that can be read. Out: bytes in the socket; frames and the memory their
//! bodies were written to. A long body may go over further streams in stripes.
//!
//! - `tx`: the queue of frames and bodies to send; read this file first
//! - `body`: one outgoing body: its parts, and the regions it holds
//! - `rx`: the receive buffer and the position in the stream
//! - `incoming`: one incoming body, and the memory it is for
//! - `scatter`, `gather`: bodies in stripes over further streams, sent and received; `stripes`: their common parts
//! - `tuner`: measures whether further streams are faster than one

pub mod body;
pub mod gather;
pub mod incoming;
pub mod rx;
pub mod scatter;
pub mod stripes;
pub mod tuner;
pub mod tx;

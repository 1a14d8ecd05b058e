// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts of the engine. A part owns private data, and its methods name events of the protocol. A method returns the
//! outcome, and the engine (`state::State`) applies the outcome: it reports completions, or tells another part. No part
//! knows another part or the engine; the domain, the bindings and other data that several parts need come as arguments.
//!
//! Read `peers` and `matching` first: the records of peers, and their receives and messages. `lanes` leads to the peers,
//! `listeners` hears them, `exposed` closes the memory that they have read, `reports` writes the program's entries, and
//! `turns` counts the turns of progress.

pub mod exposed;
pub mod lanes;
pub mod listeners;
pub mod matching;
pub mod peers;
pub mod reports;
pub mod turns;

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts of the engine. A part owns private data. Most methods of a part handle an event of the protocol and have the
//! name of this event: `Peers::offered`, `Lanes::connected`. A method returns the outcome of the event, and the engine
//! (`state::State`) applies the outcome: it reports completions, or tells another part. No part knows another part or the
//! engine; the domain, the bindings and other data that several parts need come as arguments.
//!
//! Read `peers` and `matching` first: the records of peers, and the receives and messages. `lanes` has the lanes to the
//! peers, and `listeners` the listeners where peers call. `exposed` closes memory that was exposed to peers, `reports`
//! writes the program's entries, and `turns` counts the turns of progress. One more part is in another folder: the
//! operations under way (`peers::outstanding::Ops`).

pub mod exposed;
pub mod lanes;
pub mod listeners;
pub mod matching;
pub mod peers;
pub mod reports;
pub mod turns;

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The records of one endpoint: its peers and their lanes, the credit of both sides, operations and messages that are under way.
//!
//! These files hold data and the rules that concern one record alone; `state` puts the records together, and `connect` and `transfer`
//! change them. Read `peer` first, then `link` (the connection to a peer), `credit` (flow control), `outstanding` (operations and receives)
//! and `unexpected` (messages that came before their receives). `poll_schedule` orders the lanes by how often progress polls them,
//! `listen_schedule` says how often it polls listeners, and `budget` counts bytes for all endpoints of a domain together.

pub mod budget;
pub mod credit;
pub mod link;
pub mod listen_schedule;
pub mod outstanding;
pub mod peer;
pub mod poll_schedule;
pub mod unexpected;

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tcp provider: the same fabric where there is no RDMA NIC, over plain sockets, between hosts.
//!
//! `docs/tcp-wire.md` describes what two endpoints say to each other. A connection begins in `dial` (dialer) and
//! `pending` (listener), in the words of `hello`, with a key (`auth`, `known`) under the handshake of `noise`, and is a stream of frames from then on, whose records
//! `seal` makes and opens: `tx` and `body` send them, `rx` and `incoming` take them, `slots` bring device memory to and from them. `streams` are further connections
//! for long bodies, which `scatter` and `gather` send and take; with `rails` frames go over several paths, which `junction` keeps up. `vigil` finds peers that are gone. `conn` and `state` are the data on which `rma`, `msg`,
//! `handle` and `progress` work; `provider` and `calls` are what the layer above calls.

pub mod address;
mod arrival;
mod atomic;
pub mod auth;
mod body;
mod calls;
mod carry;
mod cm;
mod conn;
mod dial;
mod domain;
mod endpoint;
mod fast;
mod fault;
pub mod frame;
mod gather;
pub mod greeter;
mod handle;
mod held;
pub mod hello;
mod incoming;
pub mod info;
mod judge;
mod junction;
pub mod known;
mod lane;
mod limits;
mod list;
mod locate;
mod lookup;
mod mr;
mod msg;
pub mod noise;
mod ops;
mod outlet;
mod pending;
mod pep;
mod pollset;
mod progress;
mod provider;
mod rail;
mod rails;
mod recv;
mod refusal;
mod refused_keys;
mod reorder;
mod rest;
mod rma;
mod rx;
mod scatter;
pub mod seal;
mod sealed;
pub mod segment;
mod shake;
mod slots;
mod source;
mod state;
mod streams;
mod stripes;
mod target;
mod tune;
mod tx;
mod vigil;

pub use address::{Address, SCHEME};
pub use dial::{Dial, Dialed};
pub use domain::Domain;
pub use endpoint::Endpoint;
pub use greeter::{Greeter, Request};
pub use hello::{ADDRESS_MAX, DATA_MAX, HIGHEST, Purpose, Terms};
pub use mr::MAX_REGIONS;
pub use pep::Listener;
pub use provider::Tcp;
pub use shake::Link;

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shm provider: processes of one host, with nothing installed and nothing left behind.
//!
//! `docs/shm-format.md` describes what lies in shared memory and who may write it. Files know only those below them: data of a
//! domain (up to `domain`), data of an endpoint (up to `state`), protocols (up to `rma` and `recv`), and the jobs that run them.

mod address;
mod arrivals;
mod atomic;
mod cm;
mod conn;
mod control;
mod coop;
mod coop_list;
mod copy;
mod device;
mod devices;
mod domain;
mod endpoint;
mod exports;
mod fast;
mod fault;
mod files;
mod flight;
mod frame;
mod greeter;
mod import;
mod info;
mod job;
mod lane;
mod layout;
mod leaving;
mod limits;
mod link;
mod list;
mod list_copy;
mod locate;
mod messages;
mod mr;
mod ops;
mod parcel;
mod peer;
mod pep;
mod posted;
mod progress;
mod provider;
mod quiesce;
mod recv;
mod region;
mod remote;
mod rendezvous;
mod rma;
mod send;
mod share;
mod staged;
mod state;
mod table;
mod ways;
mod window;
mod wire;

pub use address::{SCHEME, check_address};
pub use domain::Domain;
pub use endpoint::Endpoint;
pub use frame::{DATA_MAX, NAME_MAX};
pub use greeter::Request;
pub use limits::{INJECT_SIZE, MAX_MSG, RX_SIZE, TX_SIZE};
pub use pep::Listener;
pub use provider::Shm;
pub use table::MAX_REGIONS;

const _: () = assert!(DATA_MAX == super::info::CM_DATA_MAX && NAME_MAX + SCHEME.len() < super::info::ADDR_MAX);

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transports (providers), and the parts that they share. Calls come in from `fabric` and `rdm`: control calls through the
//! traits of `contract.rs`, frequent posting and reading through the tables of operations of `ops.rs`. Results go out into
//! completion queues and counters (`queue.rs`) and event queues (`event.rs`).
//!
//! Read `contract.rs` first: it has the traits that each provider implements. Then `ops.rs`, `fast.rs` and `general.rs`
//! (tables of operations and the general entries), `bind.rs` (the queues and counters that an endpoint is bound to, and how
//! operations end there), `list.rs`, `lists.rs` and `list_work.rs` (lists of blocks), and `lane.rs` (the link of an endpoint
//! that matches messages). The providers are `shm`, `tcp` and `verbs`; none knows another.

pub mod accept;
pub mod atomic;
pub mod av;
pub mod bind;
pub mod contract;
pub mod described;
pub mod drivers;
pub mod event;
pub mod fast;
pub mod fault;
pub mod flags;
pub mod general;
pub mod idle_set;
pub mod info;
pub mod lane;
pub mod list;
mod list_work;
pub mod lists;
pub mod name;
pub mod op;
pub mod ops;
pub mod options;
pub mod order;
pub mod outstanding;
pub mod parcel;
pub mod pep;
pub mod queue;
pub mod report;
pub mod request;
pub mod shm;
pub mod source;
pub mod tcp;
pub mod verbs;
pub mod waiter;

pub use contract::{Domain, Endpoint, Listener, Offer, Provider, Reach, no_coop, no_effort};
pub use event::{Event, EventKind, EventQueue};
pub use lane::{Lane, Parcel, ParcelSink};
pub use pep::PassiveEndpoint;
pub use queue::{Completion, Counter, Queue};
pub use request::Request;
pub use source::CompletionSource;

use crate::error::{Error, Result, errno};
use info::{Ask, Info};

/// The providers of this build, best first. A new provider is a folder beside these and a line here.
pub static PROVIDERS: &[&dyn Provider] = &[&shm::Shm, &verbs::Verbs, &tcp::Tcp];

/// The provider with this name, which an info carries.
pub fn get(name: Option<&str>) -> Result<&'static dyn Provider> {
    match name {
        Some(name) => match PROVIDERS.iter().find(|p| p.name() == name) {
            Some(provider) => Ok(*provider),
            None => Err(Error::new(errno::ENODEV, format!("info->prov_name: there is no provider {name:?}"))),
        },
        None => Err(Error::invalid("info->prov_name: missing; pass an info that getinfo returned")),
    }
}

/// The names of the providers.
pub fn names() -> Vec<&'static str> {
    PROVIDERS.iter().map(|p| p.name()).collect()
}

/// The offer of every provider, best provider first.
pub fn offers() -> Vec<Offer> {
    PROVIDERS.iter().map(|p| p.offer()).collect()
}

/// The candidates of every provider, best provider first. A provider that is not `wanted` is not asked, and gives an empty
/// info with its name.
pub fn candidates(ask: &Ask<'_>, wanted: impl Fn(&str) -> bool) -> Vec<Info> {
    let stub = |name: &str| Info { prov_name: Some(name.into()), ..Info::default() };
    let of = |p: &&dyn Provider| if wanted(p.name()) { p.candidates(ask) } else { vec![stub(p.name())] };
    PROVIDERS.iter().flat_map(of).collect()
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transports, and what they share: the shape of an operation, queues that results go to, and the
//! list of what is built in. Who uses one holds an enum of them: `on_provider!` reaches the one inside.

pub mod accept;
pub mod bind;
pub mod event;
pub mod fault;
pub mod flags;
pub mod info;
pub mod op;
pub mod order;
pub mod queue;
pub mod shm;
pub mod tcp;
pub mod verbs;
pub mod waiter;

pub use event::{Event, EventKind, EventQueue};
pub use queue::{Completion, Counter, Queue};
pub use verbs::Armed;

use crate::error::{Error, Result};
use crate::sync::serial::Threading;
use info::{Ask, Info};
use std::sync::Arc;

/// What a provider offers on this host, or why it does not.
pub struct Offer {
    pub name: &'static str,
    pub usable: Result<()>,
    /// One line per fact: what works here and what does not, and why.
    pub facts: Vec<(String, std::result::Result<String, String>)>,
}

/// Every provider of this build, best first.
pub fn offers() -> Vec<Offer> {
    vec![shm::offer(), verbs::offer(), tcp::offer()]
}

/// Names of the providers of this build.
pub fn names() -> &'static [&'static str] {
    &["shm", "verbs", "tcp"]
}

/// Candidates of every provider, best first; those of one that is not `wanted` are not looked for.
pub fn candidates(ask: &Ask<'_>, wanted: impl Fn(&str) -> bool) -> Vec<Info> {
    let stub = |name: &str| Info { prov_name: Some(name.into()), ..Info::default() };
    let mut all = if wanted("shm") { shm::candidates(ask) } else { vec![stub("shm")] };
    all.extend(if wanted("verbs") { verbs::candidates(ask) } else { vec![stub("verbs")] });
    all.extend(if wanted("tcp") { tcp::candidates(ask) } else { vec![stub("tcp")] });
    all
}

/// Whether `address` is one of the provider `name`'s.
pub fn check_address(name: &str, address: &str) -> Result<()> {
    match name {
        "verbs" => verbs::check_address(address),
        "tcp" => tcp::check_address(address),
        _ => shm::check_address(address).map(|_| ()),
    }
}

/// The NIC behind a candidate; `near` is the PCI address of an accelerator.
pub fn nic(info: &Info, near: Option<&str>) -> Result<info::Nic> {
    match info.prov_name.as_deref() {
        Some("verbs") => verbs::nic(info, near),
        Some(name) => Err(Error::new(crate::error::errno::ENODATA, format!("info: provider {name} has no NIC"))),
        None => Err(Error::invalid("info->prov_name: missing; pass an info that getinfo returned")),
    }
}

pub enum Domain {
    Shm(Arc<shm::Domain>),
    Tcp(Arc<tcp::Domain>),
    Verbs(Arc<verbs::Domain>),
}

#[allow(clippy::large_enum_variant)] // whoever holds one is on the heap as a whole
pub enum Endpoint {
    Shm(shm::Endpoint),
    Tcp(tcp::Endpoint),
    Verbs(verbs::Endpoint),
}

pub enum PassiveEndpoint {
    Shm(shm::PassiveEndpoint),
    Tcp(tcp::PassiveEndpoint),
    Verbs(verbs::PassiveEndpoint),
}

/// Where a completion queue gets its entries from: for shm and tcp, from its endpoints.
#[derive(Clone)]
pub enum Source {
    Endpoints,
    Verbs(Arc<verbs::Cq>),
}

/// Runs the same words on whichever provider is inside.
macro_rules! on_provider {
    ($enum:ident, $of:expr, $p:ident => $do:expr) => {
        match $of {
            $crate::prov::$enum::Shm($p) => $do,
            $crate::prov::$enum::Tcp($p) => $do,
            $crate::prov::$enum::Verbs($p) => $do,
        }
    };
}
pub(crate) use on_provider;

impl Domain {
    pub fn open(info: &Info, threading: Threading) -> Result<Domain> {
        match info.prov_name.as_deref() {
            Some("verbs") => Ok(Domain::Verbs(verbs::Domain::open(info, threading)?)),
            Some("tcp") => Ok(Domain::Tcp(Arc::new(tcp::Domain::open(info, threading)?))),
            Some("shm") => Ok(Domain::Shm(Arc::new(shm::Domain::open(
                threading,
                info.mr_mode & flags::MR_MODE_VIRT_ADDR != 0,
                info.mr_mode & flags::MR_MODE_PROV_KEY != 0,
            )?))),
            _ => Err(Error::invalid("info->prov_name: not the provider of the fabric")),
        }
    }

    /// Opens what feeds a completion queue of `size` entries.
    pub fn open_source(&self, size: usize, queue: &Arc<Queue>) -> Result<Source> {
        match self {
            Domain::Shm(_) | Domain::Tcp(_) => Ok(Source::Endpoints),
            Domain::Verbs(d) => Ok(Source::Verbs(verbs::Cq::open(d, size, queue)?)),
        }
    }

    pub fn open_endpoint(&self, info: &Info, context: usize) -> Result<Endpoint> {
        match self {
            Domain::Shm(d) => Ok(Endpoint::Shm(shm::Endpoint::open(d.clone(), context))),
            Domain::Tcp(d) => Ok(Endpoint::Tcp(tcp::Endpoint::open(d.clone(), info, context)?)),
            Domain::Verbs(d) => Ok(Endpoint::Verbs(verbs::Endpoint::open(d.clone(), info, context)?)),
        }
    }
}

impl PassiveEndpoint {
    pub fn open(info: &Info, context: usize) -> Result<PassiveEndpoint> {
        match info.prov_name.as_deref() {
            Some("verbs") => Ok(PassiveEndpoint::Verbs(verbs::PassiveEndpoint::open(info.src_addr.as_deref(), context)?)),
            Some("tcp") => Ok(PassiveEndpoint::Tcp(tcp::PassiveEndpoint::open(info, context)?)),
            _ => Ok(PassiveEndpoint::Shm(shm::PassiveEndpoint::open(info.src_addr.as_deref(), context)?)),
        }
    }
}

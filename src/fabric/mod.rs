// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects of the API: fabrics, domains, endpoints, queues, counters, address vectors and regions. `capi` calls
//! them with parsed arguments; they check states and bindings, and call the provider through its contract
//! (`prov/contract.rs`). Objects keep each other alive by reference counts, and closing an object that others still use
//! fails with -EBUSY. No provider is named here.
//!
//! Read `endpoint.rs` and `cq.rs` first. Both objects begin with their table of operations (`prov/ops.rs`), so that the most
//! frequent calls bypass this layer. `progress_set.rs` and `wait.rs` decide which endpoints make progress in a call that
//! reads or waits.

mod av;
mod cntr;
mod cq;
mod descriptor;
mod domain;
mod drive;
mod endpoint;
mod eq;
pub mod hmem;
mod info;
mod list;
mod origin;
mod pep;
mod progress_set;
mod progressor;
mod read;
mod requests;
mod root;
mod users;
pub mod wait;

pub use crate::prov::av::{NAME_LEN, Name, UNSPEC};
pub use crate::prov::bind::{Coop, Effort};
pub use crate::prov::ops::CqFormat;
pub use av::Av;
pub use cntr::{Cntr, WaitEnd};
pub use cq::Cq;
pub use domain::{Domain, Mr};
pub use endpoint::{Endpoint, PathAnswer, PathStats, RailReport, Stats};
pub use eq::Eq;
pub use info::{
    ADDR_STR, EP_MSG, EP_RDM, Info, Near, Nic, PROGRESS_AUTO, PROGRESS_MANUAL, Secret, THREAD_DOMAIN, THREAD_SAFE, getinfo, left_out, nic,
};
pub use list::{Block, LIST_MAX, List, Prepared};
pub use pep::Pep;
pub use read::put_all;
pub use requests::RequestId;
pub use root::Fabric;

use crate::error::{Error, Result, errno};
pub(crate) use crate::prov::ops::Owner;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The context pointer with which a caller opened an object. The library hands it back and never follows it.
#[derive(Default)]
pub struct Context(AtomicUsize);

impl Context {
    pub fn set(&self, context: usize) {
        self.0.store(context, Ordering::Relaxed);
    }

    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn no_flags(bits: u64) -> Result<()> {
    if bits != 0 {
        return Err(Error::new(errno::EBADFLAGS, format!("flags: {bits:#x}, must be 0")));
    }
    Ok(())
}

fn check_data(data: &[u8], max: usize) -> Result<()> {
    if data.len() > max {
        return Err(Error::invalid(format!("paramlen: {} bytes of private data, cm_data_size is {max}", data.len())));
    }
    Ok(())
}

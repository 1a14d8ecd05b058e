// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What memory is and how it can be reached. Host memory only so far; every other interface is
//! known by name and answers why it cannot be used.

use crate::error::{Error, Result, errno};

/// Who made the memory; the numbers are libfabric's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Iface {
    System = 0,
    Cuda = 1,
    Rocr = 2,
    Ze = 3,
    Neuron = 4,
    SynapseAi = 5,
}

impl Iface {
    pub fn from_raw(raw: u32) -> Option<Iface> {
        use Iface::*;
        [System, Cuda, Rocr, Ze, Neuron, SynapseAi].into_iter().find(|i| *i as u32 == raw)
    }

    pub fn name(self) -> &'static str {
        match self {
            Iface::System => "system",
            Iface::Cuda => "cuda",
            Iface::Rocr => "rocr",
            Iface::Ze => "ze",
            Iface::Neuron => "neuron",
            Iface::SynapseAi => "synapseai",
        }
    }

    /// Whether this build can handle the interface, and if not why.
    pub fn usable(self) -> Result<()> {
        match self {
            Iface::System => Ok(()),
            other => Err(Error::new(
                errno::ENOSYS,
                format!(
                    "attr->iface: this version of gdrfab cannot reach {} memory by address; a mappable dma-buf of it can be registered with GDRFAB_MR_DMABUF",
                    other.name()
                ),
            )),
        }
    }
}

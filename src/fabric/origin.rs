// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The provider, fabric and domain names with which an object was opened. An info with other names opens nothing in that
//! object.

use super::info::Info;
use crate::error::{Error, Result};

pub(crate) struct OpenedNames {
    object: &'static str,
    provider: &'static str,
    fabric: Option<String>,
    /// `None` for a fabric.
    domain: Option<String>,
}

impl OpenedNames {
    pub fn of_fabric(provider: &'static str, info: &Info) -> OpenedNames {
        OpenedNames { object: "fabric", provider, fabric: info.fabric_name.clone(), domain: None }
    }

    pub fn of_domain(provider: &'static str, info: &Info) -> OpenedNames {
        OpenedNames { object: "domain", provider, fabric: info.fabric_name.clone(), domain: info.domain_name.clone() }
    }

    pub fn provider(&self) -> &'static str {
        self.provider
    }

    /// Fails with `EINVAL` if the info names another provider, fabric or domain than the object. A name that either side
    /// lacks fits.
    pub fn check(&self, info: &Info) -> Result<()> {
        // A connection request belongs to the device at which it arrived, which may be another port than the domain's.
        let domain = info.domain_name.as_deref().filter(|_| info.request.is_none());
        self.same("prov_name", info.prov_name.as_deref(), Some(self.provider))?;
        self.same("fabric_name", info.fabric_name.as_deref(), self.fabric.as_deref())?;
        self.same("domain_name", domain, self.domain.as_deref())
    }

    fn same(&self, field: &str, info: Option<&str>, opened: Option<&str>) -> Result<()> {
        match (info, opened) {
            (Some(info), Some(opened)) if info != opened => {
                Err(Error::invalid(format!("info->{field}: {info:?}, but the {} was opened with {opened:?}", self.object)))
            }
            _ => Ok(()),
        }
    }
}

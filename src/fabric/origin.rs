// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The names that an object was opened with: an info of another provider, fabric or domain opens nothing in it.

use super::info::Info;
use crate::error::{Error, Result};

pub(crate) struct Origin {
    object: &'static str,
    provider: &'static str,
    fabric: Option<String>,
    /// Of a fabric: none.
    domain: Option<String>,
}

impl Origin {
    pub fn of_fabric(provider: &'static str, info: &Info) -> Origin {
        Origin { object: "fabric", provider, fabric: info.fabric_name.clone(), domain: None }
    }

    pub fn of_domain(provider: &'static str, info: &Info) -> Origin {
        Origin { object: "domain", provider, fabric: info.fabric_name.clone(), domain: info.domain_name.clone() }
    }

    pub fn provider(&self) -> &'static str {
        self.provider
    }

    /// `EINVAL` names the info's provider, fabric or domain and that of the object. A name that either side lacks fits.
    pub fn check(&self, info: &Info) -> Result<()> {
        // The device of a connection request is known by its arrival, and may be another port of the domain's.
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

//! The decision about one interface.

use super::invariants::never;
use super::rule::Judgement;
use super::{Interface, NamespaceSelector, PolicySettings, Refusal, Rule, Source, Tenant};

/// Whether an interface of a definition may be made. The administrator's always may.
///
/// # Errors
/// Why not, and what to do about it.
pub fn decide(settings: &PolicySettings, source: &Source, interface: &Interface) -> Result<(), Refusal> {
    let Source::Tenant(tenant) = source else { return Ok(()) };
    never(settings, tenant, interface)?;
    match rule_of(settings, tenant)? {
        Some((number, rule)) => Judgement { tenant, number, rule, interface }.pass(),
        None => Ok(()),
    }
}

/// The first rule that is for this namespace, and its number from 1; `None` where the policy has no rules.
///
/// # Errors
/// When there are rules and none is for it.
pub fn rule_of<'s>(
    settings: &'s PolicySettings,
    tenant: &Tenant,
) -> Result<Option<(usize, &'s Rule)>, Refusal> {
    if settings.rules.is_empty() {
        return Ok(None);
    }
    let meant = |rule: &&Rule| rule.namespaces.iter().any(|selector| selects(selector, tenant));
    let found = (1..).zip(&settings.rules).find(|(_, rule)| meant(rule));
    found.map(Some).ok_or_else(|| Refusal::NoRule {
        namespace: tenant.namespace().to_owned(),
        rules: settings.rules.len(),
    })
}

fn selects(selector: &NamespaceSelector, tenant: &Tenant) -> bool {
    match selector {
        NamespaceSelector::Name(glob) => glob.matches(tenant.namespace()),
        NamespaceSelector::Labels(labels) => labels.iter().all(|(k, v)| tenant.labels().get(k) == Some(v)),
    }
}

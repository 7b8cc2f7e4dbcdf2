//! `cargo xtask layers`: an arrow between two packages may only point down the list of layers.

use core::fmt;

use cargo_metadata::{Dependency, DependencyKind, Package};

use crate::{Outcome, Verdict, cargo};

/// Check the direction of dependencies between the packages of this workspace.
///
/// A package may depend only on packages below it, the pure parts on no driver and no runtime. Tests may also use
/// evenhand-testkit.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

const POLICY: &str = "evenhand-policy";
const STORE: &str = "evenhand-store";
const SCHEDULER: &str = "evenhand-scheduler";
const STORE_POSTGRES: &str = "evenhand-store-postgres";
const TESTKIT: &str = "evenhand-testkit";
const XTASK: &str = "xtask";
const AXUM_SERVICE: &str = "axum-service";
const FAIRNESS_CLASSES: &str = "fairness-classes";
const FILE_STORE: &str = "file-store";
const FOREIGN_QUEUE: &str = "foreign-queue";
const SQLX: &str = "sqlx";
const TOKIO: &str = "tokio";

/// Each package and which of ours it may build on, from the bottom up. `store-postgres` and `scheduler` do not see each
/// other. The examples stand where their readers stand: on the library crates, and with PostgreSQL only where they need it.
const LAYERS: [(&str, &[&str]); 10] = [
    (POLICY, &[]),
    (STORE, &[POLICY]),
    (SCHEDULER, &[POLICY, STORE]),
    (STORE_POSTGRES, &[POLICY, STORE]),
    (TESTKIT, &[POLICY, STORE, SCHEDULER, STORE_POSTGRES]),
    (XTASK, &[POLICY, STORE, SCHEDULER, STORE_POSTGRES, TESTKIT]),
    (AXUM_SERVICE, &[POLICY, STORE, SCHEDULER, STORE_POSTGRES]),
    (FAIRNESS_CLASSES, &[POLICY, STORE, SCHEDULER]),
    (FILE_STORE, &[POLICY, STORE, SCHEDULER]),
    (FOREIGN_QUEUE, &[POLICY, STORE, SCHEDULER, STORE_POSTGRES]),
];

/// What the tests of every package may use beside what the package itself may.
const FOR_TESTS: &str = TESTKIT;

/// Crates of others that only these packages may depend on outside of their tests.
const CONFINED: [(&str, &[&str]); 2] = [
    (
        SQLX,
        &[STORE_POSTGRES, TESTKIT, XTASK, AXUM_SERVICE, FOREIGN_QUEUE],
    ),
    (
        TOKIO,
        &[
            SCHEDULER,
            STORE_POSTGRES,
            TESTKIT,
            XTASK,
            AXUM_SERVICE,
            FAIRNESS_CLASSES,
            FILE_STORE,
            FOREIGN_QUEUE,
        ],
    ),
];

/// A package, a feature of it, and what the package may depend on only when that feature is on, so that the author of a
/// store on another driver can use the conformance suite without ours.
const HIDDEN: (&str, &str, &[&str]) = (TESTKIT, "postgres", &[SQLX, STORE_POSTGRES]);

/// An arrow that points the wrong way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    from: String,
    to: String,
    rule: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, rule } = self;
        write!(f, "{from} must not depend on {to}: {rule}")
    }
}

pub(crate) async fn run(Args {}: Args) -> Outcome {
    let packages = cargo::metadata().await?.packages;
    let violations = violations(&packages);
    for violation in &violations {
        eprintln!("error: {violation}");
    }
    if !violations.is_empty() {
        return Ok(Verdict::Failed);
    }
    println!(
        "every dependency between {} packages points down",
        packages.len()
    );
    Ok(Verdict::Passed)
}

/// All arrows that the table above does not allow, of the workspace's own packages as cargo describes them.
pub(crate) fn violations(packages: &[Package]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in packages {
        let Some((_, may_use)) = LAYERS
            .iter()
            .find(|(layer, _)| *layer == package.name.as_str())
        else {
            violations.push(Violation {
                from: package.name.to_string(),
                to: "anything".to_owned(),
                rule: "it has no place in the list of layers".to_owned(),
            });
            continue;
        };
        let is_ours = |name: &str| packages.iter().any(|other| other.name.as_str() == name);
        for dependency in &package.dependencies {
            let broken = refuse_ours(package, may_use, dependency)
                .filter(|_| is_ours(&dependency.name))
                .or_else(|| refuse_confined(package, dependency))
                .or_else(|| refuse_in_the_open(package, dependency));
            violations.extend(broken.map(|rule| Violation {
                from: package.name.to_string(),
                to: dependency.name.clone(),
                rule,
            }));
        }
    }
    violations
}

/// Why the package may not depend on another of ours.
fn refuse_ours(package: &Package, may_use: &[&str], dependency: &Dependency) -> Option<String> {
    let name = dependency.name.as_str();
    // Tests may switch on features of their own package.
    let for_tests =
        is_for_tests(dependency) && (name == FOR_TESTS || name == package.name.as_str());
    if for_tests || may_use.contains(&name) {
        return None;
    }
    Some(match may_use {
        [] => "it may use none of our packages".to_owned(),
        some => format!("of our packages it may use only {}", some.join(", ")),
    })
}

/// Why the package may not depend on a crate of others that is confined to some packages.
fn refuse_confined(package: &Package, dependency: &Dependency) -> Option<String> {
    let (confined, to) = CONFINED
        .iter()
        .find(|(confined, _)| is_part_of(&dependency.name, confined))?;
    let allowed = is_for_tests(dependency) || to.contains(&package.name.as_str());
    (!allowed).then(|| format!("{confined} is only for {}", to.join(", ")))
}

/// Why the package may not depend on something without hiding it behind its feature.
fn refuse_in_the_open(package: &Package, dependency: &Dependency) -> Option<String> {
    let (hiding, feature, hidden) = HIDDEN;
    let must_hide = hiding == package.name.as_str()
        && !is_for_tests(dependency)
        && hidden
            .iter()
            .any(|hidden| is_part_of(&dependency.name, hidden));
    if !must_hide {
        return None;
    }
    if !dependency.optional {
        return Some(format!("it may do so only behind its feature `{feature}`"));
    }
    let other = other_switch(package, dependency, feature)?;
    Some(format!(
        "only its feature `{feature}` may switch that on, and `{other}` does too"
    ))
}

fn is_for_tests(dependency: &Dependency) -> bool {
    dependency.kind == DependencyKind::Development
}

/// `sqlx` or one of the crates that it is made of.
fn is_part_of(name: &str, whole: &str) -> bool {
    name.strip_prefix(whole)
        .is_some_and(|rest| rest.is_empty() || whole == SQLX && rest.starts_with('-'))
}

/// A feature other than `feature` that switches the optional dependency on, directly or through others.
fn other_switch<'a>(
    package: &'a Package,
    dependency: &Dependency,
    feature: &str,
) -> Option<&'a str> {
    let key = dependency.rename.as_ref().unwrap_or(&dependency.name);
    package.features.iter().find_map(|(name, enables)| {
        let switches = enables.iter().any(|enabled| {
            let enabled = enabled.strip_prefix("dep:").unwrap_or(enabled);
            // `name?/feature` adds a feature to a dependency that something else has switched on.
            let switched = enabled
                .split_once('/')
                .map_or(enabled, |(switched, _)| switched);
            switched == key || switched == feature
        });
        (switches && name != feature).then_some(name.as_str())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn workspace() -> Vec<Package> {
        cargo::metadata().await.unwrap().packages
    }

    fn package<'a>(packages: &'a mut [Package], name: &str) -> &'a mut Package {
        let found = packages
            .iter_mut()
            .find(|package| package.name.as_str() == name);
        found.unwrap_or_else(|| panic!("{name} is a package of the workspace"))
    }

    fn dependency(name: &str, kind: &str, optional: bool) -> Dependency {
        let described = json!({
            "name": name, "req": "*", "kind": kind, "optional": optional,
            "uses_default_features": true, "features": [],
        });
        serde_json::from_value(described).unwrap()
    }

    /// What is wrong with the real workspace once `from` also depends on `to`.
    async fn with_arrow(from: &str, to: &str, kind: &str) -> Vec<(String, String)> {
        let mut packages = workspace().await;
        let added = dependency(to, kind, false);
        package(&mut packages, from).dependencies.push(added);
        let violations = violations(&packages).into_iter();
        violations
            .map(|violation| (violation.from, violation.to))
            .collect()
    }

    #[tokio::test]
    async fn every_arrow_of_the_workspace_points_down() {
        let packages = workspace().await;
        assert_eq!(violations(&packages), []);
        for (layer, _) in LAYERS {
            let listed = packages
                .iter()
                .any(|package| package.name.as_str() == layer);
            assert!(listed, "{layer} is not in the workspace");
        }
    }

    #[tokio::test]
    async fn an_arrow_that_points_up_or_sideways_is_caught() {
        for (from, to) in [
            (POLICY, STORE),
            (POLICY, TESTKIT),
            (STORE, SCHEDULER),
            (SCHEDULER, STORE_POSTGRES),
            (STORE_POSTGRES, SCHEDULER),
            (SCHEDULER, TESTKIT),
            (STORE_POSTGRES, TESTKIT),
            (TESTKIT, XTASK),
            (SCHEDULER, FAIRNESS_CLASSES),
            (FILE_STORE, STORE_POSTGRES),
            (FOREIGN_QUEUE, TESTKIT),
        ] {
            for kind in ["normal", "build"] {
                let expected = [(from.to_owned(), to.to_owned())];
                assert_eq!(with_arrow(from, to, kind).await, expected, "{kind}");
            }
        }
    }

    #[tokio::test]
    async fn tests_may_use_the_testkit_and_nothing_else_from_above() {
        for from in [POLICY, STORE, SCHEDULER, STORE_POSTGRES] {
            assert_eq!(with_arrow(from, TESTKIT, "dev").await, [], "{from}");
        }
        for (from, to) in [
            (POLICY, STORE),
            (SCHEDULER, STORE_POSTGRES),
            (TESTKIT, XTASK),
        ] {
            let expected = [(from.to_owned(), to.to_owned())];
            assert_eq!(with_arrow(from, to, "dev").await, expected);
        }
    }

    #[tokio::test]
    async fn drivers_and_runtimes_stay_where_they_belong() {
        for (from, to) in [
            (POLICY, "sqlx"),
            (STORE, "sqlx"),
            (SCHEDULER, "sqlx"),
            (SCHEDULER, "sqlx-postgres"),
            (FILE_STORE, "sqlx"),
            (POLICY, "tokio"),
            (STORE, "tokio"),
        ] {
            let expected = [(from.to_owned(), to.to_owned())];
            assert_eq!(with_arrow(from, to, "normal").await, expected);
            assert_eq!(with_arrow(from, to, "dev").await, []);
        }
        assert_eq!(with_arrow(STORE, "tokio-stream", "normal").await, []);
    }

    #[tokio::test]
    async fn the_testkit_hides_its_driver_behind_one_feature() {
        for hidden in [SQLX, STORE_POSTGRES] {
            let expected = [(TESTKIT.to_owned(), hidden.to_owned())];
            assert_eq!(with_arrow(TESTKIT, hidden, "normal").await, expected);
        }
        for (feature, enables, caught) in [
            ("default", "postgres", 2),
            ("history", "dep:sqlx", 1),
            ("history", "sqlx/json", 1),
            ("history", "sqlx?/json", 0),
        ] {
            let mut packages = workspace().await;
            let features = &mut package(&mut packages, TESTKIT).features;
            features.insert(feature.to_owned(), vec![enables.to_owned()]);
            assert_eq!(
                violations(&packages).len(),
                caught,
                "{feature} = [{enables:?}]"
            );
        }
    }

    #[tokio::test]
    async fn a_package_without_a_layer_is_caught() {
        let mut packages = workspace().await;
        let mut newcomer = package(&mut packages, STORE).clone();
        newcomer.name = serde_json::from_value(json!("evenhand-common")).unwrap();
        packages.push(newcomer);
        let violations = violations(&packages);
        assert_eq!(violations.len(), 1);
        assert_eq!(
            violations[0].to_string(),
            "evenhand-common must not depend on anything: it has no place in the list of layers"
        );
    }

    #[tokio::test]
    async fn a_violation_names_both_packages_and_the_rule() {
        let mut packages = workspace().await;
        let added = dependency(STORE_POSTGRES, "normal", false);
        package(&mut packages, SCHEDULER).dependencies.push(added);
        let told: Vec<String> = violations(&packages)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            told,
            [
                "evenhand-scheduler must not depend on evenhand-store-postgres: \
              of our packages it may use only evenhand-policy, evenhand-store"
            ]
        );
    }
}

//! The bill of materials: a JSON document in the format CycloneDX 1.5 that lists all packages of the program.

use serde_json::{Value, json};

use super::Release;
use super::packages::{PROGRAM, Package, PackageName, Packages};

/// Returns the bill of materials of the program.
pub(super) fn bill(packages: &Packages, release: &Release) -> String {
    let is_program = |name: &PackageName| name.0 == PROGRAM;
    let program = packages.0.iter().find(|(name, _)| is_program(name));
    let libraries = packages.0.iter().filter(|(name, _)| !is_program(name));
    let dependencies = packages.0.iter().map(|(name, package)| {
        let to: Vec<String> = package.dependencies.iter().map(reference).collect();
        json!({ "ref": reference(name), "dependsOn": to })
    });
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": program.map(|(name, package)| component("application", name, package)),
            "properties": [{ "name": "source-date-epoch", "value": release.epoch }],
        },
        "components": libraries.map(|(name, package)| component("library", name, package)).collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    });
    format!("{bill:#}\n")
}

fn component(kind: &str, name: &PackageName, package: &Package) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": reference(name),
        "name": name.0,
        "version": name.1,
    });
    // Only a package of the registry has an address there. A changed copy of a package has none.
    if let Some(checksum) = &package.checksum {
        component["purl"] = reference(name).into();
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(licence) = &package.licence {
        component["licenses"] = json!([{ "expression": licence }]);
    }
    if let Some(repository) = &package.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

/// Returns the identifier of a package in the document.
fn reference((name, version): &PackageName) -> String {
    // In such an address, a plus sign stands for a blank.
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

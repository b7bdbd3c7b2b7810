//! A test of the example for KEDA. The example must be valid YAML, and must have the fields that the `metrics-api`
//! scaler and the admin listener need.

use anyhow::{Context, Result, ensure};
use ordain_tests::plugins::root;
use yaml_rust2::YamlLoader;

#[test]
fn keda_example_has_the_fields_that_keda_reads() -> Result<()> {
    let text = std::fs::read_to_string(root().join("docs/scaledobject.yaml"))?;
    let documents = YamlLoader::load_from_str(&text)?;
    let of_kind = |kind: &str| {
        let found = documents.iter().find(|document| document["kind"].as_str() == Some(kind));
        found.with_context(|| format!("the example has no {kind}"))
    };
    let name =
        |document: &yaml_rust2::Yaml| document["metadata"]["name"].as_str().map(str::to_owned);

    let scaled = &of_kind("ScaledObject")?["spec"];
    ensure!(scaled["scaleTargetRef"]["name"].as_str().is_some(), "{scaled:?}");
    let least = &scaled["minReplicaCount"];
    let most = &scaled["maxReplicaCount"];
    ensure!(least.as_i64() == Some(1) && most.as_i64() > Some(1), "{least:?} to {most:?}");
    let triggers = scaled["triggers"].as_vec().context("triggers")?;
    let [trigger] = &triggers[..] else { anyhow::bail!("{triggers:?}") };
    ensure!(trigger["type"].as_str() == Some("metrics-api"), "{trigger:?}");
    let metadata = &trigger["metadata"];
    // KEDA expects every value as a string.
    let texts = metadata.as_hash().context("metadata")?;
    ensure!(texts.iter().all(|(_, value)| value.as_str().is_some()), "{texts:?}");
    let url = metadata["url"].as_str().context("a url")?;
    ensure!(url.contains("/v1/scale/"), "{url}");
    ensure!(metadata["valueLocation"].as_str() == Some("wanted_instances"), "{metadata:?}");
    ensure!(metadata["targetValue"].as_str() == Some("1"), "{metadata:?}");
    ensure!(metadata["authMode"].as_str() == Some("bearer"), "{metadata:?}");

    let authentication = of_kind("TriggerAuthentication")?;
    let wanted = trigger["authenticationRef"]["name"].as_str();
    ensure!(wanted.is_some() && name(authentication).as_deref() == wanted, "{authentication:?}");
    let token = &authentication["spec"]["secretTargetRef"][0];
    ensure!(token["parameter"].as_str() == Some("token"), "{token:?}");
    let secret = of_kind("Secret")?;
    ensure!(name(secret).as_deref() == token["name"].as_str(), "{secret:?}");
    let key = token["key"].as_str().context("a key")?;
    ensure!(secret["stringData"][key].as_str().is_some(), "{secret:?}");
    Ok(())
}

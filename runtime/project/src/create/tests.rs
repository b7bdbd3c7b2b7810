//! Tests of the creation of projects.

use super::*;

fn create(folder: &Path, ordering: ProjectOrdering) -> Result<CreatedProject, NewProjectError> {
    NewProject { language: "rust", folder, ordering }.create()
}

#[test]
fn invalid_name_is_rejected_and_nothing_is_created() {
    let home = tempfile::tempdir().unwrap();
    for name in ["Account", "1st", "a_b", "a-", "ä", &"a".repeat(65), "..", "a b"] {
        let error = create(&home.path().join(name), ProjectOrdering::Sequenced).unwrap_err();
        assert!(matches!(error, NewProjectError::Name(_)), "{name}: {error}");
    }
    for name in ["match", "test", "class"] {
        let error = create(&home.path().join(name), ProjectOrdering::Sequenced).unwrap_err();
        assert!(matches!(error, NewProjectError::ReservedName(_)), "{name}: {error}");
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn folder_with_content_is_rejected() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("account");
    fs::create_dir(&folder).unwrap();
    create(&folder, ProjectOrdering::Sequenced).expect("an empty folder is accepted");
    let again = create(&folder, ProjectOrdering::Sequenced).unwrap_err();
    assert!(matches!(again, NewProjectError::NotEmpty(_)), "{again}");
    fs::write(home.path().join("file"), "").unwrap();
    let file = create(&home.path().join("file"), ProjectOrdering::Sequenced).unwrap_err();
    assert!(matches!(file, NewProjectError::NotFolder(_)), "{file}");
}

#[test]
fn every_template_has_its_files_and_no_placeholder_is_left() {
    for language in crate::languages() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("my-account");
        let ordering = ProjectOrdering::Sequenced;
        let created = NewProject { language, folder: &folder, ordering }.create().unwrap();
        assert_eq!(created.name, "my-account");
        assert_eq!(created.commands.len(), 3, "{language}: {:?}", created.commands);
        for expected in [".gitignore", "README.md", "events.ndjson", "ordain.toml"] {
            assert!(created.files.iter().any(|file| file == expected), "{language}: {expected}");
        }
        assert!(created.files.iter().all(|file| !file.contains("README-for-new")), "{language}");
        for file in &created.files {
            let text = fs::read(folder.join(file)).unwrap();
            let text = String::from_utf8_lossy(&text);
            assert!(!text.contains("{{") || !text.contains("}}"), "{language}: {file}: {text}");
            assert!(!file.contains("{{"), "{language}: {file}");
        }
        let template = TEMPLATES.iter().find(|template| template.language == language).unwrap();
        assert!(!template.sdk.is_empty(), "{language}");
        for file in template.sdk {
            assert_eq!(fs::read(folder.join(file.path)).unwrap(), file.content, "{}", file.path);
        }
    }
}

#[test]
fn vendored_rust_sdk_does_not_refer_to_the_workspace() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("account");
    create(&folder, ProjectOrdering::Sequenced).unwrap();
    let sdk = folder.join("vendor/ordain-sdk");
    let manifest = fs::read_to_string(sdk.join("Cargo.toml")).unwrap();
    assert!(manifest.contains("version = \"") && !manifest.contains("workspace"), "{manifest}");
    assert!(fs::read_to_string(sdk.join("src/guest.rs")).unwrap().contains("path: \"wit\""));
    assert!(sdk.join("wit/handler.wit").is_file());
}

#[test]
fn fifo_project_has_no_sequences_and_its_events_are_in_order() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("account");
    create(&folder, ProjectOrdering::Fifo).unwrap();
    let config = fs::read_to_string(folder.join("ordain.toml")).unwrap();
    assert!(config.contains("handler = \"account\"\nordering = \"fifo\"\n"), "{config}");
    let events = fs::read_to_string(folder.join("events.ndjson")).unwrap();
    assert!(!events.contains("sequence"), "{events}");
    let of_anna: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["subject"] == "anna")
        .map(|event| event["type"].clone())
        .collect();
    assert_eq!(of_anna, ["account.deposited", "account.withdrawn", "account.deposited"]);
}

#[test]
fn lines_after_an_event_stay_after_it() {
    let sequenced = "{\"subject\":\"a\",\"sequence\":\"2\",\"id\":\"x\"}\nof x\n\
                     {\"subject\":\"a\",\"sequence\":\"1\",\"id\":\"y\"}\nof y\n";
    assert_eq!(
        fifo_events(sequenced),
        "{\"subject\":\"a\",\"id\":\"y\"}\nof y\n{\"subject\":\"a\",\"id\":\"x\"}\nof x\n"
    );
}

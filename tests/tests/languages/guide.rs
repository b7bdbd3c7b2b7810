//! Tests of the guide's pages about languages: the files and the commands of each page must work exactly as they are
//! printed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ordain_tests::guide::{other_blocks, section_code};
use ordain_tests::plugins::root;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::tools::{shell, shell_with_errors};

/// The section that builds a handler in Python, Go or C by hand.
const BY_HAND: &str = "A handler, its test and its component";

/// A folder beside the clone of the repository, as the pages describe it.
struct Workshop {
    home: TempDir,
    /// The name of the folder with the handler.
    name: &'static str,
}

impl Workshop {
    /// Creates a folder beside the clone.
    fn new(name: &'static str) -> Result<Self> {
        let home = tempfile::tempdir()?;
        symlink(root(), home.path().join("ordain"))?;
        Ok(Self { home, name })
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join(self.name)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let file = self.folder().join(name);
        fs::create_dir_all(file.parent().context("a file in a folder")?)?;
        Ok(fs::write(file, text)?)
    }

    /// Writes the files of a page, and runs its commands: the commands that test and build the handler, which must
    /// print `tested`, and then the commands that run the handler. Returns the output of the run.
    fn follow(
        &self,
        files: &[(String, String)],
        commands: &[String],
        tested: &str,
    ) -> Result<String> {
        for (name, text) in files {
            self.write(name, text)?;
        }
        let [build, run] = commands else { panic!("{commands:?}") };
        let output = shell_with_errors(&self.folder(), build)?;
        ensure!(output.contains(tested), "{tested:?} is not in\n{output}");
        let printed = shell(&self.folder(), run)?;
        ensure!(printed.contains("ordain.toml is valid"), "{printed}");
        Ok(printed)
    }
}

/// Returns the data of the messages with the key `anna`.
fn data_of_anna(printed: &str) -> Vec<Value> {
    let messages = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["subject"] == "anna")
        .map(|message| message["data"].clone())
        .collect()
}

/// Follows a page that builds a handler by hand. Returns the output of the run.
fn follow(page: &str, name: &'static str, tested: &str) -> Result<String> {
    let code = section_code(page, BY_HAND)?;
    let workshop = Workshop::new(name)?;
    workshop.follow(&code.files, &code.commands, tested).with_context(|| page.to_owned())
}

#[test]
fn page_about_javascript_works() -> Result<()> {
    let page = "javascript.md";
    let code = section_code(page, "Your own handler")?;
    let (new, commands) = code.commands.split_first().context("the page has no commands")?;
    let workshop = Workshop::new("visits")?;
    shell(workshop.home.path(), new)?;
    for (name, _) in &code.files {
        ensure!(workshop.folder().join(name).exists(), "the project has no {name}");
    }
    let printed = workshop.follow(&code.files, commands, "pass 1").with_context(|| page)?;
    assert_eq!(data_of_anna(&printed), [json!(["/", 1]), json!(["/cart", 2])], "{printed}");
    Ok(())
}

#[test]
fn page_about_python_works() -> Result<()> {
    balances_are_right(&follow("python.md", "handlers", "Ran 1 test")?)
}

#[test]
fn page_about_go_works() -> Result<()> {
    balances_are_right(&follow("go.md", "handlers", "ok  \thandlers/account")?)
}

fn balances_are_right(printed: &str) -> Result<()> {
    let balances = [500, 200].map(|cents| json!({ "balance_cents": cents }));
    assert_eq!(data_of_anna(printed), balances, "{printed}");
    ensure!(printed.contains("the balance would be -1 cents"), "{printed}");
    Ok(())
}

#[test]
fn page_about_c_works() -> Result<()> {
    let printed = follow("c.md", "handlers", "a visit is counted")?;
    assert_eq!(data_of_anna(&printed), [json!(["/", 1]), json!(["/cart", 2])], "{printed}");
    Ok(())
}

/// The handler that the page shows for events with different data, after the page's first handler.
#[test]
fn decoding_on_the_page_about_python_works() -> Result<()> {
    let code = section_code("python.md", BY_HAND)?;
    let [decoding] = &other_blocks("python.md", BY_HAND, "python")?[..] else {
        panic!("the page has other blocks")
    };
    let workshop = Workshop::new("handlers")?;
    let (_, first) = code.files.first().context("the page has no handler")?;
    workshop.write(
        "account.py",
        &format!("{first}\n\nfrom ordain import delete\n\n{decoding}    return put(Account(change.amount_cents))\n"),
    )?;
    let test = "from account import Account, handle\nfrom ordain.testing import Runner\n\
                run = Runner(handle)\nrun.event('moved', {'amount_cents': 5})\n\
                print(run.state, run.event('account.closed').ends_key)\n";
    workshop.write("check.py", test)?;
    let run = "PYTHONPATH=../ordain/sdk/python python3 check.py";
    assert_eq!(shell(&workshop.folder(), run)?, "Account(balance_cents=5) True\n");
    Ok(())
}

/// The statements that the page shows for messages with other properties, and for events with different data.
#[test]
fn statements_on_the_page_about_go_compile() -> Result<()> {
    let code = section_code("go.md", BY_HAND)?;
    let [messages, decoding] = &other_blocks("go.md", BY_HAND, "go")?[..] else {
        panic!("the page has other blocks")
    };
    let workshop = Workshop::new("handlers")?;
    for (name, text) in code.files.iter().filter(|(name, _)| name == "go.mod") {
        workshop.write(name, text)?;
    }
    let decoding = decoding.replace("\t…\n", "\t}\n\treturn nil, ordain.Reject(\"unknown\")\n}\n");
    let program = format!(
        "package main\n\nimport \"ordain\"\n\ntype Account struct{{}}\ntype Renamed struct{{}}\n\
         func rename(ordain.Event[Renamed], *Account) (*ordain.Outcome[Account], error) {{ return nil, nil }}\n\
         func invoiced(invoice Account, pdf []byte, customer string) (*ordain.Outcome[Account], error) {{\n{messages}}}\n\
         {decoding}\nfunc init() {{ ordain.Handle(handle) }}\nfunc main() {{}}\n"
    );
    workshop.write("main.go", &program)?;
    shell(&workshop.folder(), "go vet .")?;
    Ok(())
}

/// The statements that the page shows for reading and writing JSON.
#[test]
fn json_on_the_page_about_c_works() -> Result<()> {
    let [reading, writing] = &other_blocks("c.md", BY_HAND, "c")?[..] else {
        panic!("the page has other blocks")
    };
    let workshop = Workshop::new("handlers")?;
    let program = format!(
        "#include \"ordain_testing.h\"\n#include <stdio.h>\n\
         ORDAIN_HANDLER(event, state) {{\n{reading}\
         const uint64_t cents[] = {{total, (uint64_t)limit, name.len, state != NULL}};\nconst size_t count = 4;\n\
         {writing}return ORDAIN_OK;\n}}\n\
         int main(void) {{\n\
         ordain_runner *runner = ordain_runner_new();\n\
         const char *data = \"{{\\\"name\\\":\\\"anna\\\",\\\"items\\\":[{{\\\"cents\\\":2}},{{\\\"cents\\\":3}}]}}\";\n\
         const ordain_outcome *outcome = ordain_runner_event(runner, \"paid\", data);\n\
         puts(outcome->messages[0].data.ptr);\nordain_runner_free(runner);\n}}\n"
    );
    workshop.write("statements.c", &program)?;
    let makefile = "include ../ordain/sdk/c/ordain.mk\n\
                    run:\n\t@$(CC) $(ORDAIN_TEST_FLAGS) -Werror statements.c $(ORDAIN_SOURCES) -o run && ./run\n";
    workshop.write("Makefile", makefile)?;
    let printed = shell(&workshop.folder(), "make --silent run")?;
    assert_eq!(printed, "{\"order\":\"key\",\"cents\":[5,100,4,0]}\n");
    Ok(())
}

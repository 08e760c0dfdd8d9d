//! The way through one sandbox at the real E2B. It costs money, so it runs only when it is asked for.

use sandhold_core::{
    Attempt, CreateOptions, DestroyOutcome, Generation, Key, Network, Owner, PauseOutcome, ProcessSpec,
    SandboxHandleExt, SandboxProvider, SandboxProviderExt, SandboxSpec, Tags,
};
use sandhold_e2b::{E2bConfig, E2bProvider};

#[tokio::test]
#[ignore = "makes a sandbox at the real E2B, which costs money: run it with --ignored and E2B_API_KEY"]
async fn a_sandbox_is_made_paused_resumed_and_destroyed() {
    let config = E2bConfig::from_env().unwrap();
    let provider = E2bProvider::new(config).unwrap();
    let tags = Tags {
        owner: Owner::new("sandhold-live").unwrap(),
        key: Key::new("one").unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    };
    let spec =
        SandboxSpec::default().with_network(Network::Host).with_lease(std::time::Duration::from_secs(120));
    let handle = provider.create_opts(CreateOptions::new(spec, tags.clone())).await.unwrap();
    let id = handle.id().clone();
    // In a task of its own, so that a panic does not leave the sandbox behind.
    let used = provider.clone();
    let using = tokio::spawn(async move {
        handle.write_bytes("mark", "here").await.unwrap();
        assert!(handle.exec(ProcessSpec::shell("cat mark")).await.unwrap().exit.success());
        assert_eq!(used.find_id(handle.id()).await.unwrap().unwrap().tags, Some(tags));
        assert_eq!(used.pause(handle.id()).await.unwrap(), PauseOutcome::Paused);
        let again = used.connect(handle.id()).await.unwrap();
        assert!(again.resumed.is_some());
        assert_eq!(again.handle.read_text("mark").await.unwrap(), "here");
    })
    .await;
    assert_eq!(provider.destroy(&id).await.unwrap(), DestroyOutcome::Destroyed);
    using.unwrap();
    assert_eq!(provider.find_id(&id).await.unwrap(), None);
}

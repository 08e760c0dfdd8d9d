//! What an account at E2B keeps beside sandboxes: volumes and secrets.

use std::collections::BTreeMap;

use napi::Env;
use napi::bindgen_prelude::{Either, Object, PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core::ByteStream;
use sandhold_e2b::wire::Secret;
use sandhold_e2b::{Secrets, VolumeContent, VolumeOptions, Volumes};

use crate::convert::{Options, extract};
use crate::plain::Plain;
use crate::process::bytes;
use crate::provider::NativeE2BProvider;
use crate::runtime::{NativeCall, call};
use crate::stream::{NativeBytes, NativeSecretList};
use crate::upload::NativeUpload;
use crate::values;

/// A volume of an account.
#[napi(object, object_from_js = false)]
pub struct VolumeInfo {
    pub volume_id: String,
    pub name: String,
}

impl From<sandhold_e2b::wire::Volume> for VolumeInfo {
    /// Without its token, which is for its content alone.
    fn from(volume: sandhold_e2b::wire::Volume) -> Self {
        Self { volume_id: volume.volume_id, name: volume.name }
    }
}

/// The volumes of an account.
#[napi]
pub struct NativeVolumes(Volumes);

/// The secrets of an account.
#[napi]
pub struct NativeSecrets(Secrets);

#[napi]
impl NativeE2BProvider {
    /// The volumes of the account.
    #[napi(getter)]
    pub fn volumes(&self) -> NativeVolumes {
        NativeVolumes(self.0.volumes())
    }

    /// The secrets of the account.
    #[napi(getter)]
    pub fn secrets(&self) -> NativeSecrets {
        NativeSecrets(self.0.secrets())
    }
}

#[napi]
impl NativeVolumes {
    /// Makes a volume and opens its content.
    #[napi]
    pub fn create<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        name: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, NativeVolumeContent>> {
        let (volumes, name) = (self.0.clone(), extract::<String>(env, "create", "name", name)?);
        call(env, around, async move { volumes.create(&name).await })
    }

    /// Opens the content of a volume.
    #[napi]
    pub fn open<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, NativeVolumeContent>> {
        let (volumes, id) = (self.0.clone(), extract::<String>(env, "open", "id", id)?);
        call(env, around, async move { volumes.open(&id).await })
    }

    /// Lists the volumes.
    #[napi]
    pub fn list<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Vec<VolumeInfo>>> {
        let volumes = self.0.clone();
        call(env, around, async move { Ok(values::all(volumes.list().await?)) })
    }

    /// Deletes a volume with its content.
    #[napi]
    pub fn delete<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let (volumes, id) = (self.0.clone(), extract::<String>(env, "delete", "id", id)?);
        call(env, around, async move { volumes.delete(&id).await.map(values::destroyed) })
    }
}

/// The files of one volume.
#[napi]
pub struct NativeVolumeContent(VolumeContent);

impl From<VolumeContent> for NativeVolumeContent {
    fn from(content: VolumeContent) -> Self {
        Self(content)
    }
}

#[napi]
impl NativeVolumeContent {
    /// The volume's id.
    #[napi(getter)]
    pub fn id(&self) -> String {
        self.0.id().to_owned()
    }

    /// The volume's name.
    #[napi(getter)]
    pub fn name(&self) -> String {
        self.0.name().to_owned()
    }

    /// Returns facts about a path.
    #[napi]
    pub fn stat<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (content, path) = (self.0.clone(), extract::<String>(env, "stat", "path", path)?);
        call(env, around, async move { content.stat(&path).await })
    }

    /// Changes the owner, group or permission bits of a path.
    #[napi]
    pub fn change<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (content, path) = (self.0.clone(), extract::<String>(env, "change", "path", path)?);
        let options = made_in(env, "change", options)?;
        call(env, around, async move { content.change(&path, &options).await })
    }

    /// Removes a path with all that is in it.
    #[napi]
    pub fn remove<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let (content, path) = (self.0.clone(), extract::<String>(env, "remove", "path", path)?);
        call(env, around, async move { content.remove(&path).await })
    }

    /// Lists a directory.
    #[napi]
    pub fn list<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Vec<Plain>>> {
        let (content, path) = (self.0.clone(), extract::<String>(env, "list", "path", path)?);
        let mut given = Options::new(env, "list", options);
        let depth = given.count("depth")?.unwrap_or(1);
        given.finish()?;
        call(env, around, async move { Ok(values::all(content.list(&path, depth).await?)) })
    }

    /// Makes a directory.
    #[napi]
    pub fn make_dir<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (content, path) = (self.0.clone(), extract::<String>(env, "makeDir", "path", path)?);
        let options = made_in(env, "makeDir", options)?;
        call(env, around, async move { content.make_dir(&path, &options).await })
    }

    /// Reads a file as a stream.
    #[napi]
    pub fn read<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, NativeBytes>> {
        let (content, path) = (self.0.clone(), extract::<String>(env, "read", "path", path)?);
        call(env, around, async move { content.read(&path).await })
    }

    /// Writes a file.
    #[napi]
    pub fn write<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        body: Either<&NativeUpload, Unknown<'_>>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (content, path) = (self.0.clone(), extract::<String>(env, "write", "path", path)?);
        let body = match body {
            Either::A(upload) => upload.body(),
            Either::B(body) => ByteStream::from_bytes(bytes(env, "write", "body", body)?),
        };
        let options = made_in(env, "write", options)?;
        call(env, around, async move { content.write(&path, body, &options).await })
    }
}

fn made_in(env: &Env, call: &'static str, given: Option<Object<'_>>) -> napi::Result<VolumeOptions> {
    let mut given = Options::new(env, call, given);
    let mut options = VolumeOptions::default();
    options.uid = given.count("uid")?;
    options.gid = given.count("gid")?;
    options.mode = given.count("mode")?;
    options.force = given.take("force")?.unwrap_or(false);
    given.finish()?;
    Ok(options)
}

type Metadata = Option<BTreeMap<String, String>>;

fn metadata(env: &Env, call: &'static str, given: Option<Object<'_>>) -> napi::Result<Metadata> {
    let mut given = Options::new(env, call, given);
    let metadata = given.take("metadata")?;
    given.finish()?;
    Ok(metadata)
}

#[napi]
impl NativeSecrets {
    /// Stores a secret.
    #[napi]
    pub fn create<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        name: Unknown<'_>,
        value: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (secrets, name) = (self.0.clone(), extract::<String>(env, "create", "name", name)?);
        let value = Secret::new(extract::<String>(env, "create", "value", value)?);
        let metadata = metadata(env, "create", options)?;
        call(env, around, async move { secrets.create(&name, value, metadata).await })
    }

    /// Gives a secret, by id or name, another value.
    #[napi]
    pub fn update<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        secret: Unknown<'_>,
        value: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (secrets, secret) = (self.0.clone(), extract::<String>(env, "update", "secret", secret)?);
        let value = Secret::new(extract::<String>(env, "update", "value", value)?);
        let metadata = metadata(env, "update", options)?;
        call(env, around, async move { secrets.update(&secret, value, metadata).await })
    }

    /// Returns facts about a secret, by id or name.
    #[napi]
    pub fn get<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        secret: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (secrets, secret) = (self.0.clone(), extract::<String>(env, "get", "secret", secret)?);
        call(env, around, async move { secrets.get(&secret).await })
    }

    /// Lists the secrets.
    #[napi]
    pub fn list(&self) -> NativeSecretList {
        self.0.list().into()
    }

    /// Deletes a secret, by id or name.
    #[napi]
    pub fn delete<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        secret: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let (secrets, secret) = (self.0.clone(), extract::<String>(env, "delete", "secret", secret)?);
        call(env, around, async move { secrets.delete(&secret).await.map(values::destroyed) })
    }
}

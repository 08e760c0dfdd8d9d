//! Which templates there are, and what they are called.

use http::{Method, StatusCode};
use sandhold_core::{DestroyOutcome, ErrorKind, Result, ResultStream};

use super::build::{BuildOptions, Prepared, TemplateBuild};
use super::recipe::Recipe;
use crate::control::{Ask, SharedControl, encoded};
use crate::error::Call;
use crate::paging::pages;
use crate::provider::E2bProvider;
use crate::wire::{AssignTags, AssignedTags, RemoveTags, Tag, Template, UpdateTemplate};

/// The reason of an error about a template that does not exist.
const MISSING: &str = "template_not_found";

/// The templates of an account.
#[derive(Clone, Debug)]
pub struct Templates {
    control: SharedControl,
}

impl E2bProvider {
    /// Returns the templates of the account.
    #[must_use]
    pub fn templates(&self) -> Templates {
        Templates { control: self.control().clone() }
    }
}

impl Templates {
    pub(crate) fn of(control: &SharedControl) -> Self {
        Self { control: control.clone() }
    }

    /// Tells whether a name is taken, by a template of this account or of another.
    ///
    /// # Errors
    /// Whatever keeps the server from saying so.
    pub async fn exists(&self, name: &str) -> Result<bool> {
        let call = Call::look("template_exists").about(MISSING);
        let ask = Ask::new(call, Method::GET, format!("/templates/aliases/{}", encoded(name)));
        match self.control.ask(ask.with_also(StatusCode::FORBIDDEN)).await {
            // Forbidden is said of a template that is there and another account's.
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.with_context("template", name)),
        }
    }

    /// Starts a build and returns while it runs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for files that are not there, and for what the server does not accept.
    pub async fn start(&self, recipe: &Recipe, options: &BuildOptions) -> Result<TemplateBuild> {
        TemplateBuild::start(&self.control, Prepared::of(recipe).await?, options).await
    }

    /// Builds a template and waits for its end.
    ///
    /// # Errors
    /// As [`Templates::start`] and [`TemplateBuild::wait`].
    pub async fn build(&self, recipe: &Recipe, options: &BuildOptions) -> Result<TemplateBuild> {
        let build = self.start(recipe, options).await?;
        build.wait().await?;
        Ok(build)
    }

    /// Streams the templates of the account.
    #[must_use]
    pub fn list(&self) -> ResultStream<Template> {
        let call = Call::look("list_templates").about("list");
        pages(&self.control, call, |cursor| match cursor {
            Some(cursor) => format!("/v2/templates?nextToken={}", encoded(&cursor)),
            None => "/v2/templates".to_owned(),
        })
    }

    /// Returns a template with its builds.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with reason `template_not_found`.
    pub async fn get(&self, name: &str) -> Result<Template> {
        let call = Call::look("get_template").about(MISSING);
        self.control.ask(Ask::new(call, Method::GET, format!("/templates/{}", encoded(name)))).await?.json()
    }

    /// Deletes a template with its builds.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] while sandboxes stand on it.
    pub async fn delete(&self, name: &str) -> Result<DestroyOutcome> {
        let call = Call::idempotent("delete_template").about(MISSING);
        let reply = self.control.delete_template(call, name).await?;
        let done = reply.status().is_success() || reply.doubted;
        Ok(if done { DestroyOutcome::Destroyed } else { DestroyOutcome::AlreadyGone })
    }

    /// Says whether other accounts may use a template.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with reason `template_not_found`.
    pub async fn set_public(&self, name: &str, public: bool) -> Result<()> {
        let call = Call::idempotent("update_template").about(MISSING);
        let ask = Ask::new(call, Method::PATCH, format!("/v2/templates/{}", encoded(name)));
        self.control.ask(ask.with_json(&UpdateTemplate { public: Some(public) })?).await.map(drop)
    }

    /// Returns the tags of a template.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with reason `template_not_found`.
    pub async fn tags(&self, name: &str) -> Result<Vec<Tag>> {
        let call = Call::look("list_tags").about(MISSING);
        self.control
            .ask(Ask::new(call, Method::GET, format!("/templates/{}/tags", encoded(name))))
            .await?
            .json()
    }

    /// Gives the build that `target` (`name:tag`) stands for more tags.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with reason `template_not_found`.
    pub async fn assign_tags(&self, target: &str, tags: &[&str]) -> Result<AssignedTags> {
        let call = Call::idempotent("assign_tags").about(MISSING);
        let body = AssignTags {
            target: target.to_owned(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        };
        self.control.ask(Ask::new(call, Method::POST, "/templates/tags").with_json(&body)?).await?.json()
    }

    /// Takes tags away from a template.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for the tag `default`.
    pub async fn remove_tags(&self, name: &str, tags: &[&str]) -> Result<()> {
        let call = Call::idempotent("remove_tags").about(MISSING);
        let body =
            RemoveTags { name: name.to_owned(), tags: tags.iter().map(|tag| (*tag).to_owned()).collect() };
        self.control.ask(Ask::new(call, Method::DELETE, "/templates/tags").with_json(&body)?).await.map(drop)
    }
}

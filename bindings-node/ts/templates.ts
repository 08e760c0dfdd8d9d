/** Templates of an account at E2B, and how they are made. */
import { call, type CallOptions } from './call'
import { now } from './errors'
import { native, type NativeRecipe, type NativeTemplateBuild, type NativeTemplates } from './native'
import type { BuildOptions, CopyOptions } from './options'
import { buildAnswer, tag, template } from './facts'
import { mapped, Stream } from './stream'
import type { AssignedTags, BuildAnswer, DestroyOutcome, LogLine, Tag, Template } from './values'

/** How a template is made. Nothing is read or sent before it is built; every call returns another recipe. */
export class Recipe {
  /** @internal */
  readonly native: NativeRecipe

  /** @internal */
  constructor(native: NativeRecipe) {
    this.native = native
  }

  /** Starts from a container image, such as `debian:12`. */
  static fromImage(image: string): Recipe {
    return new Recipe(now(() => native.NativeRecipe.fromImage(image)))
  }

  /** Starts from another template, such as `base`. */
  static fromTemplate(template: string): Recipe {
    return new Recipe(now(() => native.NativeRecipe.fromTemplate(template)))
  }

  /** Reads a Dockerfile of one stage; its directory is the context of its copies. `args` override its `ARG`s. */
  static async fromDockerfile(path: string, args: Record<string, string> = {}, options: CallOptions = {}): Promise<Recipe> {
    return new Recipe(await call(options.signal, around => native.recipeFromDockerfile(around, path, args)))
  }

  /** Reads the text of a Dockerfile; its copies come from `context`. */
  static fromDockerfileText(text: string, context: string, args: Record<string, string> = {}): Recipe {
    return new Recipe(now(() => native.NativeRecipe.fromDockerfileText(text, context, args)))
  }

  /** Says how the registry of the image is entered: by a name and a password. */
  withRegistry(username: string, password: string): Recipe {
    return this.#with(recipe => recipe.withRegistry({ type: 'registry', username, password }))
  }

  /** Says how the registry of the image is entered: Amazon's. */
  withAwsRegistry(accessKeyId: string, secretAccessKey: string, region: string): Recipe {
    const registry = { awsAccessKeyId: accessKeyId, awsSecretAccessKey: secretAccessKey, awsRegion: region }
    return this.#with(recipe => recipe.withRegistry({ type: 'aws', ...registry }))
  }

  /** Says how the registry of the image is entered: Google's. */
  withGcpRegistry(serviceAccountJson: string): Recipe {
    return this.#with(recipe => recipe.withRegistry({ type: 'gcp', serviceAccountJson }))
  }

  /** Sets the directory that copies come from; nothing outside of it is read. */
  withContext(directory: string): Recipe {
    return this.#with(recipe => recipe.withContext(directory))
  }

  /** Copies a file or directory of the context; `*` and `?` stand for parts of names. */
  copy(source: string, target: string, options: CopyOptions = {}): Recipe {
    return this.#with(recipe => recipe.copy(source, target, options))
  }

  /** Runs a command of the shell, as another user where one is given. */
  run(command: string, options: { user?: string | null } = {}): Recipe {
    return this.#with(recipe => recipe.run(command, options))
  }

  /** Sets a variable for later steps and for sandboxes. */
  env(name: string, value: string): Recipe {
    return this.#with(recipe => recipe.env(name, value))
  }

  /** Sets the directory of later steps and of sandboxes. */
  workdir(path: string): Recipe {
    return this.#with(recipe => recipe.workdir(path))
  }

  /** Sets the user of later steps and of sandboxes. */
  user(name: string): Recipe {
    return this.#with(recipe => recipe.user(name))
  }

  /** Sets the command that runs when a sandbox starts. */
  startCommand(command: string): Recipe {
    return this.#with(recipe => recipe.startCommand(command))
  }

  /** Sets the command whose success says that the start command is ready. */
  readyCommand(command: string): Recipe {
    return this.#with(recipe => recipe.readyCommand(command))
  }

  #with(change: (recipe: NativeRecipe) => NativeRecipe): Recipe {
    return new Recipe(now(() => change(this.native)))
  }
}

/** A build under way. Dropping it leaves the build alone. */
export class TemplateBuild {
  readonly #native: NativeTemplateBuild

  /** @internal */
  constructor(native: NativeTemplateBuild) {
    this.#native = native
  }

  /** The id of the template. */
  get templateId(): string {
    return this.#native.templateId
  }

  /** The id of the build. */
  get buildId(): string {
    return this.#native.buildId
  }

  /** The names of the template. */
  get names(): string[] {
    return this.#native.names
  }

  /** Says how far the build is, with the log from this line on. */
  async status(logsOffset = 0, options: CallOptions = {}): Promise<BuildAnswer> {
    return buildAnswer(await call(options.signal, around => this.#native.status(around, logsOffset)))
  }

  /** Streams the log up to the end of the build; a build that fails ends it with an error. */
  logs(): Stream<LogLine> {
    return new Stream(this.#native.logs())
  }

  /** Waits for the end; a build that failed is an `InvalidStateError` with reason `build_failed`. */
  wait(options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.wait(around))
  }
}

/** The templates of an account. */
export class Templates {
  readonly #native: NativeTemplates

  /** @internal */
  constructor(native: NativeTemplates) {
    this.#native = native
  }

  /** Tells whether a name is taken, by a template of this account or of another. */
  exists(name: string, options: CallOptions = {}): Promise<boolean> {
    return call(options.signal, around => this.#native.exists(around, name))
  }

  /** Starts a build and returns while it runs. */
  async start(recipe: Recipe, options: BuildOptions): Promise<TemplateBuild> {
    const { signal, ...rest } = options
    return new TemplateBuild(await call(signal, around => this.#native.start(around, of(recipe), rest)))
  }

  /** Builds a template and waits for its end. */
  async build(recipe: Recipe, options: BuildOptions): Promise<TemplateBuild> {
    const { signal, ...rest } = options
    return new TemplateBuild(await call(signal, around => this.#native.build(around, of(recipe), rest)))
  }

  /** Lists the templates of the account. */
  list(): Stream<Template> {
    return mapped(this.#native.list(), template)
  }

  /** Returns a template with its builds. */
  async get(name: string, options: CallOptions = {}): Promise<Template> {
    return template(await call(options.signal, around => this.#native.get(around, name)))
  }

  /** Deletes a template with its builds. */
  delete(name: string, options: CallOptions = {}): Promise<DestroyOutcome> {
    return call(options.signal, around => this.#native.delete(around, name))
  }

  /** Says whether other accounts may use a template. */
  setPublic(name: string, isPublic: boolean, options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.setPublic(around, name, isPublic))
  }

  /** Returns the tags of a template. */
  async tags(name: string, options: CallOptions = {}): Promise<Tag[]> {
    return (await call(options.signal, around => this.#native.tags(around, name))).map(tag)
  }

  /** Gives the build that `target` (`name:tag`) stands for more tags. */
  assignTags(target: string, tags: readonly string[], options: CallOptions = {}): Promise<AssignedTags> {
    return call(options.signal, around => this.#native.assignTags(around, target, tags))
  }

  /** Takes tags away from a template. */
  removeTags(name: string, tags: readonly string[], options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.removeTags(around, name, tags))
  }
}

function of(recipe: Recipe): NativeRecipe {
  if (!(recipe instanceof Recipe)) throw new TypeError("argument 'recipe': give a Recipe")
  return recipe.native
}

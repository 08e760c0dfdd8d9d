/** The list of what users call in the three languages, held against the declarations of this package. */
import assert from 'node:assert/strict'
import { readFileSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { test } from 'node:test'

type Named = string | Record<string, string> | undefined
interface Entry {
  with?: string
  all: Named
  bindings?: Named
  node?: Named
}
const table = JSON.parse(readFileSync(join(__dirname, '../api.json'), 'utf8')) as {
  classes: Record<string, Entry>
  options: Record<string, Entry>
  values: Record<string, Entry>
  words: Record<string, { at: string; are: string }>
  defaults: Record<string, Partial<Record<'seconds' | 'bytes' | 'count', number>>>
}

const faces = join(dirname(require.resolve('sandhold/package.json')), 'dist')
const declared = readdirSync(faces)
  .filter(name => name.endsWith('.d.ts') && name !== 'native.d.ts')
  .map(name => readFileSync(join(faces, name), 'utf8'))
  .join('\n')

const camel = (name: string) => name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase())

function listed(...parts: Named[]): string[] {
  const texts = parts.flatMap(part => (typeof part === 'object' ? Object.keys(part) : [part ?? '']))
  return texts.flatMap(text => text.split(' ').filter(name => name !== '')).map(camel).sort()
}

/** The lines of a class or an interface. */
function body(name: string): { own: string; base: string[] } {
  const found = new RegExp(`^(?:export )?(?:declare class|interface) ${name}(?:<\\w+>)?(?: (?:extends|implements) ([^{]*))? \\{\\n(.*?)^\\}`, 'ms').exec(declared)
  assert.ok(found, name)
  const base = (found[1] ?? '').replace(/implements.*/, '').split(/,(?![^<]*>)/).map(base => base.replace(/<.*/s, '').trim())
  return { own: found[2] ?? '', base: base.filter(base => base !== '' && new RegExp(`(?:class|interface) ${base}\\b`).test(declared)) }
}

// What JavaScript has for every class: a maker, iteration, a text, what is for nobody.
const ofLanguage = ['constructor', 'next', 'return', 'toString', 'private']

function members(name: string): string[] {
  const { own, base } = body(name)
  const names = [...own.matchAll(/^ {4}(?:static )?(?:readonly |get )?(\w+)\??[(:<]/gm)].map(member => member[1] ?? '')
  return [...names.filter(name => !ofLanguage.includes(name)), ...base.flatMap(members)]
}

for (const part of ['classes', 'options', 'values'] as const) {
  for (const [name, said] of Object.entries(table[part])) {
    test(`${name} has what the list of the three languages says`, () => {
      const inherited = said.with === undefined ? undefined : table.options[said.with]
      const wanted = listed(said.all, said.bindings, said.node, inherited?.all, inherited?.bindings)
      assert.deepEqual([...new Set(members(name))].sort(), wanted)
    })
  }
}

/** The type of a member, with the aliases in it written out. */
function type(at: string): string {
  const [name = '', member = ''] = at.split('.')
  const whole = (name: string): string => [body(name).own, ...body(name).base.map(whole)].join('')
  const line = new RegExp(`^ {4}(?:readonly )?${camel(member)}\\??[(:](.*)$`, 'm').exec(whole(name))?.[1] ?? ''
  const returned = line.includes('): ') ? line.slice(line.indexOf('): ')) : line
  return returned.replace(/\b[A-Z]\w+\b/g, alias => new RegExp(`^export type ${alias} = ([^;]*);`, 'm').exec(declared)?.[1] ?? alias)
}

for (const [name, { at, are }] of Object.entries(table.words)) {
  test(`the words of ${name} are those of the list`, () => {
    const words = [...type(at).matchAll(/'(\w+)'/g)].map(word => word[1] ?? '')
    assert.deepEqual(words.sort(), are.split(' ').sort(), at)
  })
}

for (const [at, value] of Object.entries(table.defaults)) {
  test(`the default of ${at} is told as it is`, () => {
    const [name = '', member = ''] = at.split('.')
    const comment = new RegExp(`/\\*\\*((?:(?!\\*/).)*)\\*/\\s+${camel(member)}\\?:`, 's').exec(body(name).own)?.[1] ?? ''
    const number = (value.seconds ?? 0) * 1000 || (value.count ?? 0)
    const text = value.bytes ? `${value.bytes / 2 ** 20} MiB` : String(number).replace(/(\d)(?=(\d{3})+$)/g, '$1 ')
    assert.match(comment, new RegExp(`Default ${text}\\b`))
  })
}

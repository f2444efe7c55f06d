// Builds the page from text. Nothing here, or anywhere in the console, turns text into markup.

import {address} from './address.js'
import {isRepeated, join, once} from './busy.js'
import {adopt, isListening, listen} from './listeners.js'

const SVG = 'http://www.w3.org/2000/svg'

export const at = id => document.getElementById(id)

/** An element: attributes by name, listeners as `onclick`, children as elements or text. */
export const h = (tag, attributes = {}, ...children) => built(document.createElement(tag), attributes, children)

/** The same for drawings. */
export const s = (tag, attributes = {}, ...children) => built(document.createElementNS(SVG, tag), attributes, children)

function built(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue
    if (typeof value === 'function') listen(element, name.slice(2), value)
    else if (name === 'value') element.value = value
    else element.setAttribute(name, value === true ? '' : String(value))
  }
  element.append(...present(children))
  return element
}

const present = children => children.flat(4).filter(child => child !== null && child !== undefined && child !== false)

/** Replaces what is in a region. */
export function show(region, ...children) {
  region.replaceChildren(...present(children))
  return region
}

/** Brings a region up to date and touches only what differs, so that focus, selection and a click under way survive.
 *  Elements with listeners are kept only if nothing about them changed, and then act as the newest render says. What
 *  a listener reads from the page it finds by its event: elements made beside it may not be the ones that are kept. */
export function update(region, ...children) {
  const focused = /** @type {HTMLElement} */ (document.activeElement)
  const key = region.contains(focused) ? focused.dataset?.key : undefined
  settle(
    region,
    present(children).map(child => (child instanceof Node ? child : document.createTextNode(child))),
  )
  if (key === undefined || region.contains(document.activeElement)) return
  const [again] = [...region.querySelectorAll('[data-key]')].filter(each => each.dataset.key === key)
  again?.focus()
}

function settle(parent, wanted) {
  const kept = [...parent.childNodes]
  if (kept.length !== wanted.length) return parent.replaceChildren(...wanted)
  for (const [n, old] of kept.entries()) {
    if (old.isEqualNode(wanted[n])) adopt(old, wanted[n])
    else if (isAlike(old, wanted[n])) settle(old, [...wanted[n].childNodes])
    else old.replaceWith(wanted[n])
  }
}

const isAlike = (old, fresh) =>
  old instanceof Element && !isListening(old) && !isListening(fresh) && old.cloneNode().isEqualNode(fresh.cloneNode())

/** A card with a heading. */
export const card = (title, ...children) => h('section', {class: 'card'}, h('h2', {}, title), ...children)

/** A table; headings are texts, or `[text, class, order]`; a row is a list of cells. Without rows, it says `empty`.
 *  @param {string} caption
 *  @param {any[]} headings
 *  @param {any[][]} rows
 *  @param {any} [empty] */
export function table(caption, headings, rows, empty = 'Nothing here.') {
  const columns = headings.map(heading => (Array.isArray(heading) ? heading : [heading, '']))
  if (!rows.length) return h('p', {class: 'empty'}, empty)
  return h(
    'div',
    {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption},
    h(
      'table',
      {},
      h('caption', {class: 'unseen'}, caption),
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          columns.map(([text, kind, order]) =>
            h('th', {scope: 'col', class: kind, 'aria-sort': order}, text || h('span', {class: 'unseen'}, 'Actions')),
          ),
        ),
      ),
      h(
        'tbody',
        {},
        rows.map(row =>
          h(
            'tr',
            {},
            row.map((cell, n) => h('td', {class: columns[n][1]}, cell)),
          ),
        ),
      ),
    ),
  )
}

/** Names and what they stand for. */
export const facts = (...pairs) =>
  h(
    'dl',
    {class: 'facts'},
    pairs.filter(Boolean).map(([name, ...value]) => [h('dt', {}, name), h('dd', {}, value)]),
  )

let numbered = 0

/** A labelled control, with a hint beneath it. */
export function field(label, control, hint) {
  control.id ||= `field-${++numbered}`
  if (hint) control.setAttribute('aria-describedby', `${control.id}-hint`)
  return h(
    'div',
    {class: 'field'},
    h('label', {for: control.id}, label),
    control,
    hint && h('small', {id: `${control.id}-hint`}, hint),
  )
}

export const input = (attributes = {}) =>
  h('input', {type: 'text', autocomplete: 'off', spellcheck: 'false', ...attributes})

/** A text area for JSON. `read` returns its value, or null if it is empty; undefined, and a word at the area, if the
 *  text is no JSON.
 *  @param {Record<string, unknown>} attributes
 *  @param {string} text */
export function jsonArea(attributes, text) {
  const area = /** @type {HTMLTextAreaElement} */ (h('textarea', {spellcheck: 'false', ...attributes}))
  area.value = text
  area.addEventListener('input', () => area.setCustomValidity(''))
  const read = () => {
    try {
      return area.value.trim() ? JSON.parse(area.value) : null
    } catch {
      area.setCustomValidity('This is not valid JSON.')
      area.reportValidity()
      return undefined
    }
  }
  return {area, read}
}

export const select = (options, attributes = {}) =>
  h(
    'select',
    attributes,
    options.map(option => {
      const [value, text] = Array.isArray(option) ? option : [option, option]
      return h('option', {value, selected: value === attributes.value}, text)
    }),
  )

/** A button that is off until what it does has ended; without the scope it needs, it is off and says so. A double click
 *  is one press, unless the button `repeats`.
 *  @param {string} text
 *  @param {(event: Event) => unknown} act
 *  @param {{kind?: string, missing?: string | null, repeats?: boolean, [attribute: string]: unknown}} [options] */
export function button(text, act, {kind = '', missing = null, repeats = false, ...attributes} = {}) {
  const made = h('button', {type: 'button', class: kind, disabled: Boolean(missing), ...attributes}, text)
  listen(made, 'click', event => {
    event.preventDefault()
    if (repeats || !isRepeated(event)) return once(event.currentTarget, () => act(event))
  })
  join(made)
  return locked(made, missing)
}

/** The button that sends a form; without the scope it needs, it is off and says so.
 *  @param {string} text
 *  @param {string | null} [missing] */
export const submit = (text, missing = null) =>
  locked(h('button', {class: 'main', disabled: Boolean(missing)}, text), missing)

function locked(control, missing) {
  if (!missing) return control
  control.title = `needs a token with the scope ${missing}`
  return h('span', {class: 'locked'}, control, h('small', {}, ` needs scope ${missing}`))
}

const SUBMIT = 'button:not([type=button])'

/** A form that calls `act` with its values when it is sent. Its button is off until that has ended. */
export function form(act, ...children) {
  const made = h('form', {class: 'form'}, ...children)
  listen(made, 'submit', event => {
    event.preventDefault()
    const values = Object.fromEntries(new FormData(event.currentTarget))
    const sender = event.submitter ?? event.currentTarget.querySelector(SUBMIT)
    return sender ? once(sender, () => act(values)) : act(values)
  })
  for (const sender of made.querySelectorAll(SUBMIT)) {
    listen(sender, 'click', event => isRepeated(event) && event.preventDefault())
    join(sender)
  }
  return made
}

export const badge = (text, kind = '') => h('span', {class: `badge ${kind}`}, text)

/** A link to a page, by the parts of its address; the last may be its query. */
export function link(text, ...parts) {
  const href = address(...parts)
  return h('a', {href, 'data-key': `${href} ${text}`}, text)
}

let fading

/** Says something to whoever can't see it change, and shows it for a moment. */
export function say(text) {
  const said = at('said')
  said.textContent = text
  said.className = 'toast'
  clearTimeout(fading)
  fading = setTimeout(() => {
    said.className = 'unseen'
  }, 6000)
}

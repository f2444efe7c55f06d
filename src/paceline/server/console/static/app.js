// The shell: who is logged in, which page is shown, and when it is refreshed.

import {address, parsed} from './address.js'
import {call, get, Problem, Unreachable} from './api.js'
import {watchNames} from './config_names.js'
import {at, button, h, say, show, update} from './dom.js'
import {follow, forgive, streams} from './live.js'
import {loginPage} from './login.js'
import {addPages, opener, PAGES, PLACES} from './pages.js'
import {Reads} from './reads.js'
import {watchBox} from './search_box.js'
import {clock} from './words.js'

const RETRY_MS = 3000
const READ_MS = 10_000 // so long a banner about a change without an answer stays, to be read

let session = {loginRequired: true, name: null, scopes: [], names: []}
let current = null // the page shown: {name, refresh, every, failures}; one with {stream, receive} has a stream of its own
let shownPath = location.hash.split('?')[0]
let paused = false
let timer
let closeStream = () => {}
let left = null // the page whose session ended, with what was typed there: {page, nodes, session, hash}
let unansweredUntil = null // a banner about a call without an answer goes with the first answer from then on

/** Whether the session's token has a scope; `admin` has them all. */
const INCLUDED = {view: ['read'], operate: ['read', 'view']}
const may = scope =>
  session.scopes.some(own => own === scope || own === 'admin' || (INCLUDED[own] || []).includes(scope))

/** What pages are given to work with. */
const shell = {
  may,
  missing: scope => (may(scope) ? null : scope),
  /** Does something the user asked for; what goes wrong is shown, and undefined returned. */
  async attempt(work, done) {
    try {
      const result = await work()
      banner('')
      if (done) say(typeof done === 'function' ? done(result) : done)
      return result ?? true
    } catch (error) {
      await troubled(error)
      return undefined
    }
  },
  refresh: () => refresh(),
  go: (...parts) => {
    const hash = address(...parts)
    // The same address again changes nothing by itself.
    if (location.hash === hash) open()
    else location.hash = hash
  },
}

function banner(text) {
  const shown = at('banner')
  shown.hidden = !text
  if (shown.textContent !== text) shown.textContent = text
  unansweredUntil = null
}

async function troubled(error, {retries = false} = {}) {
  if (error instanceof Problem && error.status === 401) return begin()
  if (error instanceof Problem && error.scope)
    return banner(`This needs a token with the scope ${error.scope}; ${whose()}`)
  if (error instanceof Problem) return banner(`${error.body.title ?? `Error ${error.status}`}: ${error.message}`)
  if (error instanceof Unreachable) {
    banner(retries ? `${error.message} Trying again.` : error.message)
    unansweredUntil = Date.now() + (error.isChange ? READ_MS : 0)
    return
  }
  banner(`The console failed: ${error.message}`)
  reportError(error)
}

const whose = () => `you are logged in as ${session.name}, whose scopes are: ${session.scopes.join(', ')}.`

/** The five places, and the pages of the one that is shown. */
function tabs(active) {
  const [, shown] = Object.entries(PLACES).find(([, names]) => names.includes(active)) ?? ['', []]
  update(
    at('places'),
    Object.entries(PLACES).map(([place, names]) => {
      const first = names.find(name => mayOpen(PAGES[name])) ?? names[0]
      if (!first) return null
      return h(
        'li',
        {},
        h(
          'a',
          {href: `#/${first}`, 'aria-current': names === shown ? 'true' : null, 'data-key': `place ${place}`},
          place,
        ),
      )
    }),
  )
  at('pages').hidden = shown.length < 2
  update(
    at('tabs'),
    shown.map(name => {
      const page = PAGES[name]
      const locked = !mayOpen(page)
      return h(
        'li',
        {},
        h(
          'a',
          {
            href: `#/${name}`,
            'aria-current': name === active ? 'page' : null,
            class: locked ? 'locked' : null,
            'data-key': name,
          },
          page.title,
          locked && h('span', {class: 'unseen'}, ` (needs scope ${page.needs})`),
        ),
      )
    }),
  )
  for (const current of document.querySelectorAll('nav [aria-current]'))
    current.scrollIntoView({block: 'nearest', inline: 'nearest'})
}

const mayOpen = page => !page.needs || may(page.needs)

function who() {
  if (!session.name || !session.loginRequired) {
    update(
      at('who'),
      session.loginRequired
        ? null
        : h(
            'span',
            {class: 'soft', title: 'The service listens on this machine only, and there are no tokens.'},
            'no login needed',
          ),
    )
    return
  }
  update(
    at('who'),
    h(
      'span',
      {title: `until ${new Date(session.expiresAt).toLocaleString()}`},
      h('b', {}, session.name),
      h(
        'small',
        {},
        ` ${session.scopes.includes('admin') ? 'admin' : session.scopes.join(' ')} ${session.names.join(' ')}`.trimEnd(),
      ),
    ),
    button(
      'Log out',
      async () => {
        await shell.attempt(() => call('DELETE', '/console/session'))
        await begin({keeps: false})
      },
      {kind: 'quiet'},
    ),
  )
}

function route() {
  const {parts, query} = parsed(location.hash)
  const [name, ...rest] = parts
  return [Object.hasOwn(PAGES, name) ? name : 'now', rest, query]
}

async function open() {
  stopUpdates()
  current = null
  const [name, rest, query] = route()
  const page = PAGES[name]
  frame(name)
  const main = at('main')
  if (page.needs && !may(page.needs)) {
    show(
      main,
      h('h1', {}, page.title),
      h('p', {class: 'notice'}, `${page.title} needs a token with the scope ${page.needs}; ${whose()}`),
    )
    pulse()
    return
  }
  const hash = location.hash
  const opening = await opener(page).catch(() => null)
  if (location.hash !== hash || !session.name) return
  if (!opening) {
    banner('The service does not answer. Trying again.')
    timer = setTimeout(open, RETRY_MS)
    return
  }
  current = {name, failures: 0, ...opening(show(main), shell, rest, query)}
  pulse()
  refresh()
}

/** What stands around a page. */
function frame(name) {
  document.title = `${PAGES[name].title} · paceline`
  tabs(name)
  who()
  at('search').hidden = !may('read')
  banner('')
  document.body.classList.remove('stale')
}

/** Stops what keeps the page up to date. */
function stopUpdates() {
  clearTimeout(timer)
  closeStream()
}

/** Follows the page's stream: it brings what changes from here on. */
function stream(page, reads) {
  closeStream()
  const paths = reads.size
  closeStream = follow(page.stream ?? reads.stream(Math.max(2, Math.round(page.every / 1000))), {
    lastId: page.stream ? page.version : reads.version,
    async receive(data, id) {
      if (page.stream) {
        page.version = id || page.version
        page.receive(data)
        return renewed(page)
      }
      reads.receive(data.parts)
      await redraw(page, reads)
      // The page came to read something else: the stream has to bring that, too.
      if (current === page && reads.size !== paths) refresh()
    },
    fail: refresh,
    end: begin,
  })
}

/** Brings the page up to date with what it reads; what is shown turns grey if that fails. */
async function redraw(page, reads) {
  try {
    await page.refresh(reads.read)
    if (current === page) renewed(page)
  } catch (error) {
    if (current !== page) return
    page.failures += 1
    document.body.classList.add('stale')
    // That a change may have been made matters more than that the page can't be refreshed.
    const isKnown = error instanceof Unreachable && unansweredUntil !== null
    if (!isKnown) await troubled(error, {retries: page.every && !paused})
    pulse()
  }
}

function renewed(page) {
  if (unansweredUntil === null ? page.failures : Date.now() >= unansweredUntil) banner('')
  page.failures = 0
  page.at = new Date()
  document.body.classList.remove('stale')
  pulse()
}

async function refresh() {
  stopUpdates()
  const page = current
  if (!page?.refresh) return pulse()
  const reads = new Reads()
  page.reads = reads
  await redraw(page, reads)
  // Refreshed anew meanwhile, by the user: that is what goes on.
  if (page.reads !== reads) return
  if (current === page && page.every && !paused && !document.hidden) {
    if ((page.stream || reads.size) && !page.failures && streams()) return stream(page, reads)
    timer = setTimeout(refresh, page.failures ? Math.min(RETRY_MS * page.failures, 30_000) : page.every)
  }
}

/** How fresh the page is, and the switch that stops refreshing it. */
function pulse() {
  if (!current?.every) return show(at('pulse'))
  const told = current.failures ? 'not up to date' : current.at ? `as of ${clock(current.at)}` : ''
  update(
    at('pulse'),
    button(
      paused ? 'Resume' : 'Pause',
      () => {
        paused = !paused
        stopUpdates()
        paused ? pulse() : refresh()
      },
      {kind: 'quiet', 'data-key': 'pause', 'aria-label': paused ? 'Resume refreshing' : 'Pause refreshing'},
    ),
    h('span', {class: paused ? 'dot off' : current.failures ? 'dot wrong' : 'dot'}),
    paused ? 'paused ' : 'live ',
    told,
  )
}

/** Asks who is logged in, and shows the page or the login. What was typed on a page comes back when the same user logs
 *  in again, and nobody else sees it. */
async function begin({keeps = true} = {}) {
  stopUpdates()
  forgive()
  if (!keeps) left = null
  else if (current) left = {page: current, nodes: [...at('main').childNodes], session, hash: location.hash}
  current = null
  try {
    session = await get('/console/session')
  } catch (error) {
    banner(`${error.message} Trying again.`)
    timer = setTimeout(begin, RETRY_MS)
    return
  }
  banner('')
  if (session.name) {
    const page = left
    left = null
    return isBack(page) ? goOn(page) : open()
  }
  show(at('places'))
  show(at('tabs'))
  at('pages').hidden = true
  show(at('who'))
  show(at('pulse'))
  at('search').hidden = true
  document.title = 'Log in · paceline'
  loginPage(show(at('main')), begin)
}

const isBack = page =>
  page?.hash === location.hash &&
  ['name', 'scopes', 'names'].every(each => `${page.session[each]}` === `${session[each]}`)

/** Shows the page again that was left when the session ended. */
function goOn({page, nodes}) {
  frame(page.name)
  show(at('main'), ...nodes)
  current = page
  pulse()
  refresh()
}

// The address names the page, so the link to the content must not change it.
document.querySelector('.skip')?.addEventListener('click', event => {
  event.preventDefault()
  at('main').focus()
})
addEventListener('hashchange', async () => {
  if (!location.hash.startsWith('#/') && location.hash) return
  // Another filter, order or page of the same list: whoever works with it stays where they are.
  const path = location.hash.split('?')[0]
  const key = path === shownPath ? /** @type {HTMLElement} */ (document.activeElement)?.dataset.key : undefined
  shownPath = path
  const focused = document.activeElement
  if (session.name) await open()
  // While the page was loaded, its user went on: to the box at the top, say.
  if (![focused, document.body].includes(document.activeElement)) return
  const keyed = /** @type {HTMLElement[]} */ ([...document.querySelectorAll('main [data-key]')])
  const again = keyed.find(each => each.dataset.key === key)
  if (again) return again.focus()
  at('main').focus({preventScroll: true})
  scrollTo(0, 0)
})
watchBox(shell)
watchNames(shell)
// A fault of our own must show: a button that silently does nothing is worse.
addEventListener('error', event => banner(`The console failed: ${event.message}`))
addEventListener('unhandledrejection', event => banner(`The console failed: ${event.reason?.message ?? event.reason}`))
// A stream does not notice that the network is gone.
for (const change of ['offline', 'online']) addEventListener(change, () => refresh())
document.addEventListener('visibilitychange', () => {
  forgive()
  document.hidden || paused ? stopUpdates() : refresh()
})
addPages()
  .catch(reportError)
  .then(() => begin())

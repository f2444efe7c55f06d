// Names of configs, offered while one is typed: the service looks for them, among however many there are.

import {get, query} from './api.js'
import {at, h, update} from './dom.js'

const OFFERED = 20
const PAUSE_MS = 200 // without a key, until names are looked for

/** For an input's `list`. */
export const CONFIG_NAMES = 'config-names'

/** Offers names to each input that has the list. */
export function watchNames(shell) {
  let waiting
  for (const kind of ['focusin', 'input'])
    document.addEventListener(kind, ({target}) => {
      if (!(target instanceof HTMLInputElement) || target.getAttribute('list') !== CONFIG_NAMES) return
      clearTimeout(waiting)
      if (shell.may('view')) waiting = setTimeout(() => offer(shell, target.value), PAUSE_MS)
    })
}

async function offer(shell, search) {
  const asked = query('/admin/rate-limit/configs', {search, limit: OFFERED})
  const found = await shell.attempt(() => get(asked))
  if (found)
    update(
      at(CONFIG_NAMES),
      found.configs.map(({configName}) => h('option', {value: configName})),
    )
}

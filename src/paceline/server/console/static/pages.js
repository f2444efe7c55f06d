// The pages, and the places that they stand in. A page is loaded when it is opened for the first time.

import {get} from './api.js'
import {addPlaces} from './places.js'

/** @typedef {{title: string, needs?: string, open: (...args: any[]) => any}} Page */

/** A page of a module that exports it under its name. */
const lazy = (name, title, needs, module = `./${name}.js`) => ({title, needs, name, module})

/** By name. Those of applications are added.
 *  @type {Record<string, any>} */
export const PAGES = Object.fromEntries(
  [
    lazy('now', 'Now', 'read'),
    lazy('configs', 'Configs', 'view'),
    lazy('slots', 'Slots', 'read'),
    lazy('replan', 'Replan', 'admin'),
    lazy('limits', 'Limits'),
    lazy('dispatch', 'Dispatch', 'view'),
    lazy('charts', 'Charts', 'read', './history.js'),
    lazy('periodic', 'Periodic', 'view'),
    lazy('workers', 'Workers', 'view'),
    lazy('downstreams', 'Downstreams', 'admin'),
    lazy('audit', 'Audit', 'view'),
    lazy('search', 'Search', 'read'),
  ].map(page => [page.name, page]),
)

/** The five places, and the pages of each; those of applications are added to Apps. */
export const PLACES = {
  Now: ['now'],
  Limits: ['configs', 'slots', 'replan', 'limits'],
  Work: ['dispatch', 'charts', 'periodic', 'workers', 'downstreams'],
  Apps: [],
  Admin: ['audit'],
}

/** How a page is opened.
 *  @returns {Promise<Page['open']>} */
export async function opener(page) {
  page.open ??= (await import(page.module))[page.name].open
  return page.open
}

/** Adds the pages of the applications that are installed. */
export async function addPages() {
  for (const script of await get('/console/pages')) {
    for (const [name, page] of Object.entries(await import(`./${script}`))) {
      if (page.title) {
        PAGES[name] = page
        PLACES.Apps.push(name)
      }
      addPlaces(page)
    }
  }
}

// Limits of slots: the active version of each config, what a change would do, and what was before.

import {call, get, Problem, query} from './api.js'
import {agreed} from './dialog.js'
import {
  badge,
  button,
  card,
  field,
  form,
  h,
  input,
  jsonArea,
  link,
  say,
  select,
  show,
  submit,
  table,
  update,
} from './dom.js'
import {flowPicture} from './flow_picture.js'
import {LimitTrial} from './limit_trial.js'
import {configLimit, tryConfig} from './limits_tried.js'
import {filterForm, isNarrowed, pager} from './list.js'
import {changedMeanwhile, existsAlready} from './standing.js'
import {count, durationMs, instant, moment, rate, span, spanOf, ZONE} from './words.js'

const PAGE = 50
const FILTERS = [{name: 'search', label: 'Search for', maxlength: 128}]

/** Makes a config, or the version after `active`. Status 412 is an answer: there is one, or it is at another version. */
function post(config, active) {
  /** @type {Record<string, string>} */
  const headers = active ? {'If-Match': `"${active.version}"`} : {'If-None-Match': '*'}
  return call('POST', '/admin/rate-limit/config', config, {headers, also: [412], changes: !config.dryRun})
}

export const configs = {
  open(root, shell, [name = ''], filter) {
    const [followed, list, picture, tried, editor, past] = Array.from({length: 6}, () => h('div'))
    const flowing = h('section', {class: 'card', 'aria-label': `The flow of ${name}`, hidden: true}, picture, tried)
    show(
      root,
      h('h1', {}, 'Configs'),
      card(
        'Active',
        filterForm(shell, ['configs', name], filter, FILTERS),
        followed,
        list,
        link('New config', 'configs', ''),
      ),
      flowing,
      editor,
      past,
    )
    /** @type {any} */
    let flow
    /** @type {LimitTrial | null} */
    let trial = null
    let triedVersion
    let edited
    let version // the one that is edited
    let saving = false
    let outrun = () => {}

    function edit(active) {
      edited = name
      version = active?.version
      let edits = 0 // how often the form was changed: what was tried before then is no longer what it says
      const conflict = h('div')
      outrun = () => update(conflict, changedMeanwhile(name, load))
      const {controls, tried, values} = policyForm(active)
      const events = input({type: 'number', min: 1, max: 100_000_000, value: 10_000})
      const time = input({type: 'datetime-local', step: 1})
      const filled = form(
        save,
        h('div', {class: 'grid'}, controls),
        active &&
          h(
            'fieldset',
            {},
            h('legend', {}, 'Try it first'),
            h(
              'div',
              {class: 'row'},
              field('Events', events),
              field('Requested for', time, `${ZONE}; empty: now`),
              button('Preview', preview, {missing: shell.missing('admin')}),
            ),
            tried,
          ),
        conflict,
        h(
          'div',
          {class: 'row'},
          submit(active ? 'Make it the active version' : 'Create', shell.missing('admin')),
          active && shell.may('admin') && link('Re-plan booked slots', 'replan', active.configName),
        ),
      )
      filled.addEventListener('input', () => {
        edits += 1
        show(tried)
      })
      show(editor, card(active ? `Change ${active.configName}` : 'New config', filled))

      function load() {
        edited = undefined
        shell.refresh()
      }

      async function preview() {
        const wanted = values()
        if (!wanted) return
        const begun = edits
        const asked = {configName: active.configName, events: events.value || 1, at: instant(time.value)}
        const {configName: _name, ...changes} = wanted
        // The texts `null` remove: what is empty would be left out, and so stay as it is.
        const removing = {maxDelay: wanted.maxDelay ?? 'null', calendar: JSON.stringify(wanted.calendar)}
        const seen = await shell.attempt(() =>
          Promise.all([
            get(query('/api/v1/forecast', asked)),
            get(query('/api/v1/forecast', {...asked, ...changes, ...removing})),
            post({...wanted, dryRun: true}, active),
          ]),
        )
        if (!seen || edits !== begun) return
        if (seen[2].status === 412) return outrun()
        show(
          tried,
          table(
            'The effect',
            [
              '',
              ['Per second, on average', 'number'],
              ['Windows', 'number'],
              'Done by',
              ['Takes', 'number'],
              ['Refused', 'number'],
            ],
            [
              ['Now', active, seen[0]],
              ['Changed', wanted, seen[1]],
            ].map(([title, policy, forecast]) => [
              title,
              rate((policy.maxPerWindow * 1000) / durationMs(policy.windowSize)),
              count(forecast.windowCount),
              moment(forecast.drainedBy),
              forecast.drainedBy ? span(Date.parse(forecast.drainedBy) - Date.parse(forecast.requestedTime)) : '–',
              count(forecast.refused),
            ]),
          ),
          seen[2].warnings.map(warning => h('p', {class: 'notice'}, `${warning.detail}.`)),
        )
      }

      async function save() {
        const wanted = values()
        if (!wanted) return
        const change = active
          ? `${active.maxPerWindow} per ${active.windowSize} → ${wanted.maxPerWindow} per ${wanted.windowSize}`
          : `${wanted.maxPerWindow} per ${wanted.windowSize}`
        if (
          !(await agreed(
            `${active ? 'Change' : 'Create'} ${wanted.configName}?`,
            `${change}. In force from the next booking on any node; booked slots stay where they are.`,
            active ? 'Change it' : 'Create it',
            {kind: 'main'},
          ))
        )
          return
        saving = true
        const made = await shell.attempt(() => post(wanted, active))
        saving = false
        if (!made) return
        if (made.status === 412)
          return active ? outrun() : show(conflict, existsAlready(wanted.configName, 'configs', wanted.configName))
        say(`${wanted.configName} is changed.`)
        if (made.configName !== name) return shell.go('configs', made.configName)
        edit(made)
        shell.refresh()
      }
    }

    /** The picture of the config, with a handle on its limit. */
    function draw() {
      update(picture, flowPicture(flow, trial))
    }

    function showFlow(active) {
      flowing.hidden = !flow
      if (!flow) return
      if (triedVersion !== active.version && shell.may('admin')) {
        triedVersion = active.version
        if (trial) trial.limits = configLimit(active)
        else trial = new LimitTrial(shell, configLimit(active), draw)
        if (!tried.firstChild) show(tried, trial.element)
      }
      draw()
    }

    return {
      every: 5000,
      async refresh(read) {
        const [{configs: page, next}, history, seen] = await Promise.all([
          read(listed(filter)),
          name && ofExisting(read(query('/admin/rate-limit/config/history', {name}))),
          // Of a template, the configs that follow it have the slots.
          name && !name.includes('*') && ofExisting(read(query('/admin/flow', {configName: name}))),
        ])
        const {versions} = history || {versions: []}
        flow = seen
        update(
          list,
          table(
            'Configs',
            [
              'Name',
              ['Version', 'number'],
              ['Limit', 'number'],
              'Window',
              ['Per second', 'number'],
              'Spread',
              'Calendar',
              'Horizon',
              'Since',
            ],
            page.map(each => [
              named(each, filter),
              each.version,
              count(each.maxPerWindow),
              spanOf(each.windowSize),
              rate((each.maxPerWindow * 1000) / durationMs(each.windowSize)),
              each.spread,
              each.calendar?.zone ?? '–',
              spanOf(each.maxDelay),
              moment(each.createdAt),
            ]),
            isNarrowed(filter, FILTERS) || filter.cursor || filter.template
              ? 'No config matches.'
              : 'There is no config.',
          ),
          pager(['configs', name], filter, next),
        )
        update(
          followed,
          filter.template &&
            h('p', {}, 'Configs that follow ', h('b', {}, filter.template), '. ', link('All configs', 'configs')),
        )
        const active = versions.find(each => each.active)
        if (edited !== name) edit(active)
        // What is read may also be older for a moment: another process answers.
        else if (active && active.version > version && !saving) outrun()
        if (!active) return
        showFlow(active)
        update(
          past,
          card(
            `History of ${name}`,
            table(
              'Versions',
              ['Version', ['Limit', 'number'], 'Window', 'Spread', ['Calendar', 'text'], 'Horizon', 'Since', ''],
              versions.map(each => [
                each.version,
                count(each.maxPerWindow),
                spanOf(each.windowSize),
                each.spread,
                each.calendar ? h('code', {}, JSON.stringify(each.calendar)) : '–',
                spanOf(each.maxDelay),
                moment(each.createdAt),
                each.active
                  ? badge('active', 'good')
                  : trial &&
                    each.windowSize === active.windowSize &&
                    each.maxPerWindow !== active.maxPerWindow &&
                    button(
                      `Back to ${count(each.maxPerWindow)}`,
                      () => trial?.preview(() => tryConfig(active, each.maxPerWindow)),
                      {
                        kind: 'quiet',
                        'aria-label': `Back to ${count(each.maxPerWindow)}, as in version ${each.version}`,
                        'data-key': `back ${each.version}`,
                      },
                    ),
              ]),
            ),
          ),
        )
      },
    }
  },
}

/** Where a page of configs is read. Those that follow a template are folded into it, unless somebody looks for them. */
function listed({search, template, cursor}) {
  const folded = search || template ? '' : '?template='
  return query(`/admin/rate-limit/configs${folded}`, {search, template, cursor, limit: PAGE})
}

/** A config's name; of a template, also how many follow it. */
const named = ({configName, template, followers}, filter) => [
  link(configName, 'configs', configName, filter),
  followers > 0 && h('small', {}, ' ', link(`${count(followers)} follow it`, 'configs', '', {template: configName})),
  template && !filter.template && h('small', {class: 'soft'}, ` follows ${template}`),
]

/** What is read of a config; null of one that does not exist yet. */
async function ofExisting(reading) {
  try {
    return await reading
  } catch (error) {
    if (!(error instanceof Problem) || ![400, 404].includes(error.status)) throw error
    return null
  }
}

function policyForm(active) {
  const name = input({required: true, maxlength: 128, value: active?.configName ?? '', readonly: Boolean(active)})
  const limit = input({type: 'number', min: 1, max: 2 ** 31 - 1, required: true, value: active?.maxPerWindow ?? 100})
  const size = input({required: true, value: active?.windowSize ?? 'PT4S'})
  const spread = select(['jitter', 'even'], {value: active?.spread ?? 'jitter'})
  const delay = input({value: active?.maxDelay ?? ''})
  const placeholder = '{"zone": "Europe/Berlin", "open": [{"days": ["MON"], "from": "09:00", "to": "17:00"}]}'
  const shown = active?.calendar ? JSON.stringify(active.calendar, null, 1) : ''
  const calendar = jsonArea({rows: 3, placeholder}, shown)
  const values = () => {
    const open = calendar.read()
    if (open === undefined) return undefined
    return {
      configName: name.value,
      maxPerWindow: Number(limit.value),
      windowSize: size.value.trim(),
      spread: spread.value,
      // Null, not left out: what is emptied here is to go.
      maxDelay: delay.value.trim() || null,
      calendar: open,
    }
  }
  return {
    values,
    tried: h('div', {role: 'status'}),
    controls: [
      field('Name', name),
      field('Limit', limit, 'events per window'),
      field('Window', size, 'a duration, such as 4s or PT4S'),
      field('Spread', spread),
      field('Horizon', delay, 'a duration; empty: none'),
      h('div', {class: 'wide'}, field('Calendar', calendar.area, 'JSON; empty: always open')),
    ],
  }
}

// May it run now? The plans, and a place to try them.

import {call, path} from './api.js'
import {gauge} from './charts.js'
import {agreed} from './dialog.js'
import {badge, button, card, field, form, h, input, jsonArea, link, select, show, submit, table, update} from './dom.js'
import {changedMeanwhile, existsAlready, isSame, standing} from './standing.js'
import {count, span, spanOf} from './words.js'

const ALGORITHMS = [
  ['token_bucket', 'token bucket'],
  ['fixed_window', 'fixed window'],
  ['sliding_window', 'sliding window'],
  ['sliding_log', 'sliding log'],
]

export const limits = {
  open(root, shell, [name = ''], query) {
    const [list, editor, decided] = [h('div'), h('div'), h('div', {role: 'status'})]
    const key = input({required: true, maxlength: 512, placeholder: 'user:123', value: query.key ?? ''})
    const chosen = input({required: true, placeholder: 'gold, daily', value: query.plans ?? name, list: 'plan-names'})
    const cost = input({type: 'number', min: 1, value: 1, required: true})
    const names = h('datalist', {id: 'plan-names'})
    const missing = shell.missing('assign')
    let edited

    show(
      root,
      h('h1', {}, 'Limits'),
      names,
      shell.may('view')
        ? [card('Plans', list, link('New plan', 'limits', '')), editor]
        : card('Plans', h('p', {class: 'notice'}, 'Seeing plans needs a token with the scope view.')),
      card(
        'Try a key',
        form(
          () => ask('peek'),
          h(
            'div',
            {class: 'row'},
            field('Key', key),
            field('Plans', chosen, 'with commas between; decided together'),
            field('Cost', cost),
          ),
          h(
            'div',
            {class: 'row'},
            button('Peek', () => ask('peek'), {kind: 'main', missing, repeats: true}),
            button('Acquire', () => ask('acquire'), {missing, repeats: true}),
            button('Refund', () => ask('refund'), {missing, repeats: true}),
            button('Reset', reset, {kind: 'danger', missing}),
          ),
        ),
        decided,
      ),
    )

    async function ask(operation) {
      const wanted = {
        key: key.value,
        plans: chosen.value
          .split(',')
          .map(each => each.trim())
          .filter(Boolean),
      }
      if (operation !== 'reset') wanted.cost = Number(cost.value)
      const options = {also: [429], changes: operation !== 'peek'}
      const decision = await shell.attempt(() => call('POST', `/api/v1/limits/${operation}`, wanted, options))
      if (decision)
        show(
          decided,
          decision.plans
            ? outcome(operation, wanted.key, decision)
            : h('p', {class: 'notice'}, decision.detail ?? decision.title),
        )
    }

    async function reset() {
      if (await agreed('Reset this key?', `${key.value} gets its whole quota back under ${chosen.value}.`, 'Reset it'))
        await ask('reset')
    }

    function edit(plan) {
      edited = name
      const {controls, document} = planForm(plan)
      const conflict = h('div')
      show(
        editor,
        card(
          plan ? `Change ${plan.name}` : 'New plan',
          form(
            save,
            controls,
            conflict,
            h(
              'div',
              {class: 'row'},
              submit(plan ? 'Change it' : 'Create it', shell.missing('admin')),
              plan && button('Delete it', remove, {kind: 'danger', missing: shell.missing('admin')}),
            ),
          ),
        ),
      )

      async function save() {
        const [called, body] = document() ?? []
        if (!called) return
        const place = path('/admin/plans', called)
        const looked = await shell.attempt(async () => ({plan: await standing(place)}))
        if (!looked) return
        if (!isSame(looked.plan, plan ?? null)) return show(conflict, outrun(called, looked))
        const made = await shell.attempt(() => call('PUT', place, body), `${called} is in force.`)
        if (!made) return
        if (called !== name) return shell.go('limits', called)
        edit(made)
        shell.refresh()
      }

      const outrun = (called, looked) =>
        plan
          ? changedMeanwhile(called, load, looked.plan ? 'changed' : 'deleted')
          : existsAlready(called, 'limits', called)

      function load() {
        edited = undefined
        shell.refresh()
      }

      async function remove() {
        if (!(await agreed(`Delete ${plan.name}?`, 'Calls that name it get 404 from then on.', 'Delete it'))) return
        if (await shell.attempt(() => call('DELETE', path('/admin/plans', plan.name)), `${plan.name} is deleted.`))
          shell.go('limits')
      }
    }

    if (query.key && query.plans && !missing) ask('peek')
    return {
      every: shell.may('view') ? 5000 : undefined,
      async refresh(read) {
        if (!shell.may('view')) return
        const {plans} = await read('/admin/plans')
        update(
          names,
          plans.map(each => h('option', {value: each.name})),
        )
        update(
          list,
          table(
            'Plans',
            ['Name', 'Algorithm', 'Limit', 'If the store is down', ''],
            plans.map(each => [
              link(each.name, 'limits', each.name),
              each.algorithm.replace('_', ' '),
              limitOf(each),
              each.onError ?? 'as the service is set',
              [
                each.shadow && badge('shadow', 'warn'),
                each.overrides && badge(`own limits: ${count(Object.keys(each.overrides).length)}`),
              ],
            ]),
          ),
        )
        if (edited !== name) edit(plans.find(each => each.name === name))
      },
    }
  },
}

const limitOf = plan => {
  if (plan.limits) return plan.limits.map(limitOf).join('; ')
  if (plan.algorithm === 'token_bucket') return `${count(plan.capacity)} at once, ${plan.perSecond} per second`
  if (plan.algorithm === 'gcra') return `${plan.rate}, spaced, ${count(plan.burst)} at once`
  if (plan.algorithm === 'concurrency') return `${count(plan.limit)} in flight`
  if (plan.calendar) return `${count(plan.limit)} every ${plan.calendar} in ${plan.zone}`
  return `${count(plan.limit)} every ${spanOf(plan.window)}`
}

// What the form has no fields for is shown, and edited, as JSON.
const isPlain = plan => !plan || (ALGORITHMS.some(([name]) => name === plan.algorithm) && !plan.calendar)

function ownDocument(plan) {
  const {name: _name, onError: _onError, shadow: _shadow, overrides: _overrides, ...own} = plan
  return JSON.stringify(own, null, 1)
}

function outcome(operation, key, decision) {
  const word =
    operation === 'acquire'
      ? decision.allowed
        ? 'admitted'
        : 'denied'
      : decision.allowed
        ? 'would be admitted'
        : 'would be denied'
  return [
    h(
      'p',
      {},
      h('b', {}, key),
      ' ',
      badge(word, decision.allowed ? 'good' : 'wrong'),
      ` by ${decision.plan}`,
      !decision.allowed && `; come back in ${span(decision.retryAfter * 1000)}`,
      decision.degraded && badge(`degraded: ${decision.reason}`, 'warn'),
    ),
    table(
      'Where each plan stands',
      ['Plan', 'Left', ['As new in', 'number'], ''],
      decision.plans.map(each => [
        each.plan,
        gauge(each.remaining, each.limit, `${each.plan}: left`),
        span(each.resetAfter * 1000),
        [!each.allowed && badge('no room', 'wrong'), each.shadow && badge('shadow', 'warn')],
      ]),
    ),
  ]
}

function planForm(plan) {
  const called = input({required: true, maxlength: 128, value: plan?.name ?? '', readonly: Boolean(plan)})
  const algorithm = select([...ALGORITHMS, ['rate', 'rate'], ['json', 'other, as JSON']], {
    value: isPlain(plan) ? (plan?.algorithm ?? 'token_bucket') : 'json',
  })
  const rate = input({value: '100/hour'})
  const example = '{"algorithm": "concurrency", "limit": 5, "expires": "PT30S"}'
  const {area: own, read: readOwn} = jsonArea({rows: 3}, isPlain(plan) ? example : ownDocument(plan))
  const capacity = input({type: 'number', min: 1, value: plan?.capacity ?? 10})
  const perSecond = input({value: plan?.perSecond ?? 1})
  const limit = input({type: 'number', min: 1, value: plan?.limit ?? 100})
  const window = input({value: plan?.window ?? 'PT1M'})
  const onError = select([['', 'as the service is set'], 'open', 'closed', 'fallback'], {value: plan?.onError ?? ''})
  const shadow = h('input', {type: 'checkbox', checked: Boolean(plan?.shadow)})
  const {area: overrides, read: readOverrides} = jsonArea(
    {rows: 2, placeholder: '{"user:1": {"capacity": 100, "perSecond": 10}}'},
    plan?.overrides ? JSON.stringify(plan.overrides, null, 1) : '',
  )
  const bucket = [
    field('Capacity', capacity, 'at once'),
    field('Refill', perSecond, 'a second; a number, or a fraction such as 2/3'),
  ]
  const windowed = [field('Limit', limit), field('Window', window, 'a duration, such as 1m or PT1M')]
  const rated = field('Rate', rate, 'such as 10/minute, 100/hour;1000/day or 10/minute burst 20')
  const described = h('div', {class: 'wide'}, field('Limit as JSON', own, 'gcra, concurrency, calendars, several'))
  const fit = () => {
    for (const each of bucket) each.hidden = algorithm.value !== 'token_bucket'
    for (const each of windowed) each.hidden = ['token_bucket', 'rate', 'json'].includes(algorithm.value)
    rated.hidden = algorithm.value !== 'rate'
    described.hidden = algorithm.value !== 'json'
  }
  algorithm.addEventListener('change', fit)
  fit()
  return {
    controls: h(
      'div',
      {class: 'grid'},
      field('Name', called),
      field('Algorithm', algorithm),
      bucket,
      windowed,
      rated,
      described,
      field('If the store is down', onError),
      h('div', {class: 'field check'}, h('label', {}, shadow, ' Shadow: never deny')),
      h('div', {class: 'wide'}, field('Overrides per key', overrides, 'JSON; empty: none')),
    ),
    document() {
      /** @type {Record<string, unknown>} */
      let body = {algorithm: algorithm.value, limit: Number(limit.value), window: window.value.trim()}
      if (algorithm.value === 'token_bucket') {
        const refill = perSecond.value.includes('/') ? perSecond.value.trim() : Number(perSecond.value)
        body = {algorithm: algorithm.value, capacity: Number(capacity.value), perSecond: refill}
      } else if (algorithm.value === 'rate') {
        body = {rate: rate.value.trim()}
      } else if (algorithm.value === 'json') {
        const given = readOwn()
        if (given === undefined) return undefined
        body = given ?? {}
      }
      if (onError.value) body.onError = onError.value
      if (shadow.checked) body.shadow = true
      const changes = readOverrides()
      if (changes === undefined) return undefined
      if (changes !== null) body.overrides = changes
      return [called.value, body]
    },
  }
}

// Reads the command line, and says what is wrong with it.

import { parseArgs } from 'node:util'

const options = {
  tenants: { type: 'string' },
  batch: { type: 'string', default: '1' },
  clients: { type: 'string', default: '16' },
  millis: { type: 'string' },
  busy: { type: 'string', default: '0' },
  concurrency: { type: 'string' },
  processes: { type: 'string', default: '1' },
  until: { type: 'string' },
  order: { type: 'string' },
  samples: { type: 'string' },
  fetch: { type: 'string' },
  fair: { type: 'boolean', default: false }
}

export function readArguments (line, peers, commands) {
  const { values, positionals: [peer, command, ...rest] } = parseArgs({ args: line, options, allowPositionals: true })
  if (!peers.includes(peer) || !commands.includes(command) || rest.length > 0) {
    throw new Error(`usage: main.js ${peers.join('|')} ${commands.join('|')} [OPTIONS]`)
  }
  const url = process.env.BENCH_DATABASE_URL
  if (!url && command !== 'describe') {
    throw new Error('BENCH_DATABASE_URL is not set')
  }
  return {
    peer,
    command,
    url,
    fair: values.fair,
    order: values.order,
    tenants: values.tenants === undefined ? undefined : readTenants(values.tenants),
    batch: readCount(values.batch),
    clients: readCount(values.clients),
    millis: readCount(values.millis),
    busy: readCount(values.busy),
    concurrency: readCount(values.concurrency),
    processes: readCount(values.processes),
    until: readCount(values.until),
    samples: readCount(values.samples),
    fetch: readCount(values.fetch)
  }
}

// The value of an option that the command cannot do without.
export function required (value, name) {
  if (value === undefined) {
    throw new Error(`--${name} is missing`)
  }
  return value
}

function readCount (text) {
  if (text !== undefined && !/^\d+$/.test(text)) {
    throw new Error(`not a number: ${text}`)
  }
  return text === undefined ? undefined : Number(text)
}

function readTenants (text) {
  return text.split(',').map(entry => {
    const [tenant, jobs] = entry.split('=')
    return { tenant, jobs: required(readCount(jobs), 'tenants NAME=JOBS') }
  })
}

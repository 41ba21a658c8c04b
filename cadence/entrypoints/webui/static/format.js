/** Numbers as people read them. */
export function plain(value) {
  return value >= 10 || value === 0 ? String(Math.round(value)) : value.toFixed(1);
}

export function seconds(value) {
  if (!value) return "0";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 0.9995) return `${Number((value * 1000).toPrecision(3))} ms`;
  return `${value < 10 ? Number(value.toFixed(1)) : Math.round(value)} s`;
}

/** Of a share from 0 to 1. */
export function percent(share) {
  return `${Math.round(100 * share)} %`;
}

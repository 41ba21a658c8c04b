/** Vectors compared: the cosine of every two, and places on a plane that keep near what is similar. */
const ROUNDS = 200; // of the power iteration; a few texts need far fewer

const dot = (one, other) => one.reduce((sum, value, at) => sum + value * other[at], 0);
const length = (vector) => Math.sqrt(dot(vector, vector));

function unit(vector) {
  const size = length(vector) || 1;
  return vector.map((value) => value / size);
}

/** One row for each vector, with its cosine to each. */
export function similarities(vectors) {
  const units = vectors.map(unit);
  return units.map((one) => units.map((other) => dot(one, other)));
}

/** The least and the greatest similarity of two different texts. */
export function range(rows) {
  const values = rows.flatMap((row, number) => row.filter((_, other) => other !== number));
  return values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
}

/** [x, y] of each, from -1 to 1: the two directions in which they differ most. */
export function places(rows) {
  const centred = centre(rows);
  const [across, rest] = strongest(centred);
  const [down] = strongest(rest);
  const most = Math.max(1e-9, ...across.map(Math.abs), ...down.map(Math.abs));
  return across.map((x, number) => [x / most, down[number] / most]);
}

/** Products of vectors -> products of their differences from the mean. */
function centre(rows) {
  const means = rows.map((row) => row.reduce((sum, value) => sum + value, 0) / row.length);
  const mean = means.reduce((sum, value) => sum + value, 0) / means.length;
  return rows.map((row, at) => row.map((value, other) => value - means[at] - means[other] + mean));
}

/** Of a symmetric matrix: its strongest eigenvector, as long as the root of its eigenvalue, and what is left. */
function strongest(matrix) {
  let vector = unit(matrix.map((_, at) => Math.cos(at + 1)));
  for (let round = 0; round < ROUNDS; round += 1) vector = unit(matrix.map((row) => dot(row, vector)));
  const value = dot(vector, matrix.map((row) => dot(row, vector)));
  const rest = matrix.map((row, at) => row.map((entry, other) => entry - value * vector[at] * vector[other]));
  return [vector.map((entry) => entry * Math.sqrt(Math.max(0, value))), rest];
}

// Answers of ClickHouse as Grafana's data frames, with the field configuration of a panel.
import {
  applyFieldOverrides, cacheFieldDisplayNames, DataFrame, Field, FieldConfigPropertyItem, FieldType, Registry, ScopedVars, toDataFrame,
} from '@grafana/data';
import type { GrafanaTheme2 } from '@grafana/data';

export type Answer = { meta: { name: string; type: string }[]; data: unknown[][] };
export type Panel = Record<string, any>;

const TIME = /^(LowCardinality\(|Nullable\()*Date/;
const NUMBER = /^(LowCardinality\(|Nullable\()*(U?Int|Float|Decimal)/;
const typeOf = (name: string) =>
  TIME.test(name) ? FieldType.time : NUMBER.test(name) ? FieldType.number : FieldType.string;

function cell(type: FieldType, value: unknown): unknown {
  if (value === null) return null;
  if (type === FieldType.time) return Date.parse(String(value).replace(' ', 'T').slice(0, 23) + 'Z');
  if (type === FieldType.number) return Number(value);
  return typeof value === 'object' ? JSON.stringify(value) : value;
}

/** One field for each column. */
function table(answer: Answer): DataFrame {
  const fields = answer.meta.map((column, i) => {
    const type = typeOf(column.type);
    return { name: column.name, type, config: {}, values: answer.data.map((row) => cell(type, row[i])) };
  });
  return toDataFrame({ fields });
}

/** One field for each number and combination of labels, over all times: what the data source makes of a time series. */
function wide(answer: Answer): DataFrame {
  const types = answer.meta.map((column) => typeOf(column.type));
  const timeAt = types.indexOf(FieldType.time);
  const times = [...new Set(answer.data.map((row) => cell(FieldType.time, row[timeAt]) as number))].sort((a, b) => a - b);
  const place = new Map(times.map((time, i) => [time, i]));
  const series = new Map<string, any>();
  for (const row of answer.data) {
    const labels: Record<string, string> = {};
    types.forEach((type, i) => type === FieldType.string && (labels[answer.meta[i].name] = String(row[i])));
    types.forEach((type, i) => {
      if (type !== FieldType.number) return;
      const key = answer.meta[i].name + JSON.stringify(labels);
      if (!series.has(key)) {
        const named = Object.keys(labels).length ? { labels } : {};
        const values = new Array(times.length).fill(null);
        series.set(key, { name: answer.meta[i].name, type, config: {}, ...named, values });
      }
      const at = place.get(cell(FieldType.time, row[timeAt]) as number)!;
      series.get(key).values[at] = cell(FieldType.number, row[i]);
    });
  }
  return toDataFrame({ fields: [{ name: 'time', type: FieldType.time, config: {}, values: times }, ...series.values()] });
}

const STANDARD = ['unit', 'displayName', 'decimals', 'min', 'max', 'noValue', 'mappings', 'thresholds', 'color', 'links'];

/** The properties of `panel`'s field configuration: Grafana registers them by kind of panel, here they come from its JSON. */
function properties(panel: Panel): Registry<FieldConfigPropertyItem> {
  const { defaults, overrides } = panel.fieldConfig;
  const custom = new Set<string>(Object.keys(defaults.custom ?? {}));
  for (const override of overrides)
    for (const { id } of override.properties) if (id.startsWith('custom.')) custom.add(id.slice(7));
  const item = (path: string, isCustom: boolean): any => ({
    id: isCustom ? `custom.${path}` : path, path, name: path, isCustom, settings: {}, editor: null, override: null,
    process: (value: unknown, context: any) =>
      path === 'displayName' ? context.replaceVariables(String(value), context.field?.state?.scopedVars) : value,
    shouldApply: () => true, getItemsCount: () => 0,
  });
  return new Registry(() => [...STANDARD.map((path) => item(path, false)), ...[...custom].map((path) => item(path, true))]);
}

/** `variables`: name -> text, as the choices at the top of the dashboard show it. */
export function frames(panel: Panel, answer: Answer, variables: Record<string, string>, theme: GrafanaTheme2): DataFrame[] {
  if (!answer.data.length) return [];
  const frame = panel.targets[0].format === 0 ? wide(answer) : table(answer);
  const replace = (text: string, scoped?: ScopedVars) => replaced(text, variables, scoped);
  const shown = applyFieldOverrides({
    data: [frame], fieldConfig: withInfinity(panel.fieldConfig), replaceVariables: replace, theme, timeZone: 'utc',
    fieldConfigRegistry: properties(panel) as any,
  });
  cacheFieldDisplayNames(shown);
  return shown;
}

export function replaced(text: string, variables: Record<string, string>, scoped?: ScopedVars): string {
  const field = (scoped?.__dataContext?.value as { field?: Field } | undefined)?.field;
  return text
    .replace(/\$\{__field\.labels\.(\w+)\}/g, (_, name) => field?.labels?.[name] ?? '')
    .replace(/\$\{(\w+)(?::\w+)?\}/g, (whole, name) => variables[name] ?? whole);
}

/** JSON has no -Infinity: the first step of thresholds is null there. */
function withInfinity(config: any): any {
  return JSON.parse(JSON.stringify(config), (key, value) =>
    key === 'steps' ? value.map((step: any) => ({ ...step, value: step.value ?? -Infinity })) : value);
}

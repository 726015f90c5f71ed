// Draws one dashboard, with Grafana's own components where its packages have them, else with a stand-in that says so.
import React from 'react';
import { createRoot } from 'react-dom/client';
import { createTheme, DataFrame, dateTime, EventBusSrv, FieldType, getFieldDisplayName, ThemeContext } from '@grafana/data';
import { BigValue, GlobalStyles, PanelContextProvider, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { Answer, frames, Panel, replaced } from './frames';

type Input = {
  dashboard: Panel; answers: Record<number, Answer>; variables: Record<string, string>; from: number; to: number;
};
const { dashboard, answers, variables, from, to } = (window as any).INPUT as Input;
const theme = createTheme({ colors: { mode: 'dark' } });
const range: any = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
// Grafana's grid: 24 columns, rows of 30 px, gaps of 8 px.
const COLUMNS = 24, ROW = 30, GAP = 8, HEADER = 36;
const WIDTH = window.innerWidth - 2 * GAP;
const left = (n: number) => (n * (WIDTH + GAP)) / COLUMNS;
const across = (n: number) => left(n) - GAP;
const down = (n: number) => n * (ROW + GAP) - GAP;

const note: React.CSSProperties = { color: theme.colors.text.secondary, fontSize: 12, padding: 4 };
const StandIn = ({ text }: { text: string }) => <div style={{ ...note, fontStyle: 'italic' }}>{text}</div>;
const DRAWN = 'Drawn by a stand-in: only a Grafana server has this panel.';

/** A lane for each series: state timelines and heatmaps. */
function Lanes({ frame, width, height, heat }: { frame: DataFrame; width: number; height: number; heat: boolean }) {
  const [time, ...lanes] = frame.fields;
  const label = 120, size = Math.min(34, height / Math.max(lanes.length, 1));
  const at = (ms: number) => label + ((ms - from) / (to - from)) * (width - label);
  const most = Math.max(...lanes.flatMap((lane) => lane.values.filter((v) => v !== null) as number[]));
  return (
    <svg width={width} height={height} fontSize={12} fill={theme.colors.text.primary}>
      {lanes.map((lane, row) => (
        <g key={row}>
          <text x={label - 8} y={row * size + size / 2 + 4} textAnchor="end">{getFieldDisplayName(lane, frame)}</text>
          {lane.values.map((value, i) => {
            if (value === null) return null;
            let next = i + 1;
            while (next < lane.values.length && lane.values[next] === null) next++;
            const end = next < lane.values.length ? time.values[next] : Math.min(to, time.values[i] + 1000);
            const color = heat
              ? `rgba(255, 152, 48, ${0.1 + 0.9 * Math.sqrt(value / most)})` : lane.display!(value).color;
            return <rect key={i} x={at(time.values[i])} y={row * size + 2} height={size - 4} fill={color}
              width={Math.max(at(end) - at(time.values[i]) - 0.5, 0.5)} />;
          })}
        </g>
      ))}
    </svg>
  );
}

/** Kernels by stream: the rows are edges, a name at a begin and NULL at an end. */
function Streams({ frame, width, height }: { frame: DataFrame; width: number; height: number }) {
  const [time, stream, kernel] = frame.fields.map((field) => field.values);
  const names = [...new Set(stream)].sort();
  const first = Math.min(...time), span = Math.max(...time) - first || 1;
  const label = 90, size = Math.min(40, height / names.length);
  const colors = theme.visualization.palette;
  const color = (name: string) =>
    theme.visualization.getColorByName(colors[[...name].reduce((sum, c) => sum * 31 + c.charCodeAt(0), 7) % 9]);
  const open = new Map<string, number>();
  const boxes: React.ReactNode[] = [];
  time.forEach((at: number, i: number) => {
    const begin = open.get(stream[i]);
    if (begin !== undefined && time[begin] < at) {
      const x = label + ((time[begin] - first) / span) * (width - label);
      const wide = ((at - time[begin]) / span) * (width - label);
      boxes.push(<rect key={i} x={x} y={names.indexOf(stream[i]) * size + 2} width={Math.max(wide - 0.4, 0.4)}
        height={size - 4} fill={color(String(kernel[begin]))} />);
    }
    open.delete(stream[i]);
    if (kernel[i] !== null) open.set(stream[i], i);
  });
  return (
    <svg width={width} height={height} fontSize={12} fill={theme.colors.text.primary}>
      {names.map((name, row) => <text key={name} x={label - 8} y={row * size + size / 2 + 4} textAnchor="end">{name}</text>)}
      {boxes}
    </svg>
  );
}

/** Nested scopes: `level`, `label`, `value`, a parent before its children. */
function Flames({ frame, width, height }: { frame: DataFrame; width: number; height: number }) {
  const column = (name: string) => frame.fields.find((field) => field.name === name)!.values;
  const [level, label, value] = ['level', 'label', 'value'].map(column);
  const size = Math.min(26, height / (Math.max(...level) + 1));
  const begin: number[] = [0];
  const colors = theme.visualization.palette;
  return (
    <svg width={width} height={height} fontSize={12}>
      {level.map((depth: number, i: number) => {
        const x = depth === 0 ? 0 : begin[depth];
        begin[depth] = x + value[i];
        begin[depth + 1] = x;
        const wide = (value[i] / value[0]) * width;
        if (wide < 1) return null;
        const fill = theme.visualization.getColorByName(colors[(depth * 3 + i) % 9]);
        return (
          <g key={i} transform={`translate(${(x / value[0]) * width}, ${depth * size})`}>
            <rect width={Math.max(wide - 1, 1)} height={size - 1} fill={fill} fillOpacity={0.75} />
            <text x={4} y={size / 2 + 4} fill="#fff">{String(label[i]).slice(0, Math.floor(wide / 8))}</text>
          </g>
        );
      })}
    </svg>
  );
}

function Body({ panel, width, height }: { panel: Panel; width: number; height: number }) {
  if (panel.type === 'text') return <div style={{ fontSize: 14 }}>{panel.options.content}</div>;
  if (panel.type === 'alertlist') return <StandIn text="Only a Grafana server lists its alerts here." />;
  const data = frames(panel, answers[panel.id], variables, theme);
  const empty = panel.fieldConfig.defaults.noValue;
  if (panel.type === 'stat') {
    const field = data[0]?.fields.find((f) => f.type === FieldType.number);
    const last = field ? field.values[field.values.length - 1] : null;
    const shown = last === null ? { text: empty, numeric: NaN, color: theme.colors.text.primary } : field!.display!(last);
    const color = panel.options.colorMode === 'value' ? shown.color : theme.colors.text.primary;
    return <BigValue width={width} height={height} theme={theme} value={{ ...shown, color }} justifyMode={'auto' as any}
      colorMode={'value' as any} graphMode={'none' as any} />;
  }
  if (!data.length) return <div style={{ ...note, textAlign: 'center', paddingTop: height / 3 }}>{empty}</div>;
  switch (panel.type) {
    case 'table':
      return <TableNG data={data[0]} width={width} height={height} fieldConfig={panel.fieldConfig} timeRange={range}
        showTypeIcons={false} structureRev={1} cellHeight={'sm' as any} enableVirtualization={false} {...({} as any)} />;
    case 'timeseries':
      return <TimeSeries frames={data} timeRange={range} timeZone="utc" width={width} height={height}
        legend={panel.options.legend} options={panel.options} structureRev={1}
        {...({ tweakAxis: (x: any) => x, tweakScale: (x: any) => x } as any)} />;
    case 'flamegraph':
      return <><Flames frame={data[0]} width={width} height={height - 24} /><StandIn text={DRAWN} /></>;
    case 'state-timeline':
    case 'heatmap':
      return (
        <>
          {panel.targets[0].format === 0
            ? <Lanes frame={data[0]} width={width} height={height - 24} heat={panel.type === 'heatmap'} />
            : <Streams frame={data[0]} width={width} height={height - 24} />}
          <StandIn text={DRAWN} />
        </>
      );
    default:
      throw new Error(`no way to draw ${panel.type}`);
  }
}

class Guard extends React.Component<{ title: string; children: React.ReactNode }, { error?: Error }> {
  state: { error?: Error } = {};
  static getDerivedStateFromError(error: Error) { return { error }; }
  componentDidCatch(error: Error) { console.error(`PANEL ${this.props.title}: ${error.message}`); }
  render() { return this.state.error ? <b>{String(this.state.error)}</b> : this.props.children; }
}

function Framed({ panel }: { panel: Panel }) {
  const { x, y, w, h } = panel.gridPos;
  const place: React.CSSProperties = {
    position: 'absolute', left: left(x), top: y * (ROW + GAP), width: across(w), height: down(h),
  };
  if (panel.type === 'row') return <div style={{ ...place, fontSize: 16, fontWeight: 500 }}>{panel.title}</div>;
  const padding = panel.type === 'table' ? 0 : GAP;
  const box: React.CSSProperties = {
    ...place, background: theme.colors.background.primary, border: `1px solid ${theme.colors.border.weak}`, overflow: 'hidden',
  };
  const width = across(w) - 2 - 2 * padding, height = down(h) - HEADER - 2 - padding;
  return (
    <div style={box}>
      <div style={{ height: HEADER, padding: '8px 8px 0', fontWeight: 500, whiteSpace: 'nowrap' }}>
        {replaced(panel.title, variables)}
      </div>
      <div style={{ padding: `0 ${padding}px`, width: width + 2 * padding, height }}>
        <Guard title={panel.title}><Body panel={panel} width={width} height={height} /></Guard>
      </div>
    </div>
  );
}

const bus = new EventBusSrv();
const choices = dashboard.templating.list.filter((v: any) => v.hide !== 2 && v.name !== 'datasource');
createRoot(document.getElementById('root')!).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <PanelContextProvider value={{ eventsScope: 'picture', eventBus: bus } as any}>
      <div style={{ padding: GAP, color: theme.colors.text.primary, background: theme.colors.background.canvas, minHeight: '100vh' }}>
        <div style={{ fontSize: 18, height: 32 }}>{dashboard.title}</div>
        <div style={{ height: 34, fontSize: 13, whiteSpace: 'nowrap', overflow: 'hidden' }}>
          {choices.map((v: any) => (
            <span key={v.name} style={{ marginRight: 10 }}>
              <span style={{ color: theme.colors.text.secondary, marginRight: 6 }}>{v.label}</span>
              <span style={{ border: `1px solid ${theme.colors.border.medium}`, padding: '3px 8px' }}>{variables[v.name]}</span>
            </span>
          ))}
        </div>
        <div style={{ position: 'relative' }}>{dashboard.panels.map((p: Panel) => <Framed key={p.id} panel={p} />)}</div>
      </div>
    </PanelContextProvider>
  </ThemeContext.Provider>
);

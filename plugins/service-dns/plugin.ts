// A Service with the label `dns=yes` gets a record in the DNS: the name in its annotation leads to its addresses.
import { Invalid, Request, Response, kind, plugin } from "./operator-plugin.js";

const RECORD = kind("dns.example.com/v1", "DnsRecord");
const HOSTNAME = "dns.example.com/hostname";

function reconcile(request: Request): Response {
  const { metadata, spec = {}, status = {} } = request.parent;
  const hostname = metadata.annotations?.[HOSTNAME];
  if (hostname === undefined) return new Response();
  const dot = hostname.indexOf(".");
  if (dot < 1) throw new Invalid(`the annotation ${HOSTNAME} is ${JSON.stringify(hostname)}; it must be like www.example.com`);
  const balanced = (status.loadBalancer?.ingress ?? []).flatMap(({ ip }: { ip?: string }) => ip ?? []);
  const values = [...new Set([...balanced, ...(spec.externalIPs ?? [])])].filter((ip) => !ip.includes(":")).sort();
  // Until there is an address, there is no record.
  if (values.length === 0) return new Response();
  const record = { zone: hostname.slice(dot + 1), name: hostname.slice(0, dot), type: "A", values };
  return new Response().child({ ...RECORD, metadata: { name: request.name }, spec: record });
}

export const reconciler = plugin({
  name: "service-dns",
  version: "0.1.0",
  parent: kind("v1", "Service"),
  makes: [RECORD],
  reconcile,
});

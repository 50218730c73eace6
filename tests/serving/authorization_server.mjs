// oidc-provider as a test starts it: node authorization_server.mjs PORT, beside its node_modules.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [port, modules] = process.argv.slice(2);
const found = createRequire(`${modules}/package.json`).resolve("oidc-provider");
const { default: Provider } = await import(pathToFileURL(found).href);
const people = { alice: ["team-a"], root: ["admins"], mallory: ["strangers"] };

const provider = new Provider(`http://127.0.0.1:${port}`, {
  cookies: { keys: ["for tests alone"] },
  clientDefaults: { application_type: "native" },
  scopes: ["openid", "offline_access", "tools"],
  findAccount: (_, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
  extraTokenClaims: (_, token) => ({ groups: people[token.accountId] ?? [] }),
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => ({
        scope: "tools", audience: resource, accessTokenFormat: "jwt", jwt: { sign: { alg: "RS256" } },
      }),
    },
  },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));

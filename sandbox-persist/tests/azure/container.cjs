// Makes a container at `url` with the key of the account; azurite takes requests that are signed, and no others.
const crypto = require("node:crypto");
const [url, account, key] = process.argv.slice(2);
const date = new Date().toUTCString();
const path = new URL(url).pathname;
const text = `PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:${date}\nx-ms-version:2021-08-06\n/${account}${path}\nrestype:container`;
const signature = crypto.createHmac("sha256", Buffer.from(key, "base64")).update(text, "utf8").digest("base64");
const headers = { "x-ms-date": date, "x-ms-version": "2021-08-06", authorization: `SharedKey ${account}:${signature}` };
fetch(`${url}?restype=container`, { method: "PUT", headers }).then(async (answer) => {
    if (answer.status !== 201) throw new Error(`${answer.status}: ${await answer.text()}`);
});

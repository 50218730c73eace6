// The page of the gateway: the live view alone.
import * as key from "./key.js";
import * as live from "./live.js";

key.listen("These figures are for admins who may call every tool.", () => live.follow(true));
live.follow(true);

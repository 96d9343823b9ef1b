-- One view of the clients and the topics that published most.
CREATE OR REPLACE VIEW tops AS
SELECT 'client' AS kind, client AS name, node, rank, messages, bytes FROM top_clients
UNION ALL
SELECT 'topic' AS kind, topic AS name, node, rank, messages, bytes FROM top_topics

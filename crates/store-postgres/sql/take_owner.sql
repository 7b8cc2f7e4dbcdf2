SET ROLE evenhand_owner
